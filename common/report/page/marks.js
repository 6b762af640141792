// Marks beside the lines: bands of extremes, envelopes of differences, tolerances, and events of a run.
// uPlot calls drawBands and drawOverlay. Its canvas has devicePixelRatio pixels for each pixel of the page.

// Paint inside the area of a plot.
function paintClipped(uplot, paint) {
  const { left, top, width, height } = uplot.bbox;
  uplot.ctx.save();
  uplot.ctx.beginPath();
  uplot.ctx.rect(left, top, width, height);
  uplot.ctx.clip();
  paint(uplot.ctx);
  uplot.ctx.restore();
}

// Fill the range between the smallest and the largest value of each column of pixels.
function drawBands(uplot, plot) {
  paintClipped(uplot, (ctx) => {
    ctx.globalAlpha = 0.22;
    for (const { run, raw } of plot.layers) {
      if (!raw) continue;
      ctx.fillStyle = getColour(run);
      const wide = uplot.bbox.width / (raw.last.length - 1);
      raw.largest.forEach((largest, i) => {
        const smallest = raw.smallest[i];
        if (!(largest > smallest) || (isLog(plot) && !(smallest > 0))) return;
        const top = uplot.valToPos(largest, "y", true);
        ctx.fillRect(uplot.bbox.left + (i - 0.5) * wide, top, wide, uplot.valToPos(smallest, "y", true) - top);
      });
    }
  });
}

function drawOverlay(uplot, plot) {
  paintClipped(uplot, (ctx) => {
    if (plot.kind === "difference") {
      plot.layers.forEach((layer, order) => drawEnvelope(uplot, ctx, layer, order));
      for (const tolerance of new Set(plot.layers.map(({ pair }) => pair.tolerance[plot.metric]))) drawTolerance(uplot, ctx, tolerance);
      for (const layer of plot.layers) drawFirstBeyond(uplot, ctx, plot, layer);
    }
    drawEvents(uplot, ctx, plot);
  });
}

// Draw the largest differences as a staircase with one stair for each column. If the runs are identical in a column, draw
// a strip at the bottom of the plot instead. The strips of several runs lie above one another, in the `order` of the runs.
function drawEnvelope(uplot, ctx, { run, columns }, order) {
  const bottom = uplot.bbox.top + uplot.bbox.height - devicePixelRatio;
  const strip = bottom - (3 + 4 * Math.min(order, 9)) * devicePixelRatio;
  const toY = (value) => (value === Infinity ? uplot.bbox.top : uplot.valToPos(value, "y", true));
  const outline = new Path2D();
  let previous;
  for (const { from, to, value } of columns) {
    const [left, right] = [uplot.valToPos(from, "x", true), uplot.valToPos(to, "x", true)];
    if (value > 0) {
      const y = toY(value);
      if (previous > 0) outline.lineTo(left, y);
      else outline.moveTo(left, y);
      outline.lineTo(Math.max(right, left + devicePixelRatio), y);
      ctx.globalAlpha = 0.1;
      ctx.fillStyle = getColour(run);
      ctx.fillRect(left, y, right - left, bottom - y);
    } else if (value === 0) {
      ctx.globalAlpha = 0.9;
      ctx.fillStyle = getColour(run);
      ctx.fillRect(left, strip, right - left, 3 * devicePixelRatio);
    }
    previous = value;
  }
  ctx.globalAlpha = 1;
  ctx.strokeStyle = getColour(run);
  ctx.lineWidth = 1.5 * devicePixelRatio;
  ctx.stroke(outline);
}

function drawStraightLine(ctx, from, to, colour, dash) {
  ctx.strokeStyle = colour;
  ctx.lineWidth = devicePixelRatio;
  ctx.setLineDash(dash.map((length) => length * devicePixelRatio));
  ctx.beginPath();
  ctx.moveTo(...from);
  ctx.lineTo(...to);
  ctx.stroke();
  ctx.setLineDash([]);
}

function writeText(ctx, text, x, y, colour, align) {
  ctx.font = `${12 * devicePixelRatio}px system-ui, sans-serif`;
  ctx.textAlign = align;
  ctx.textBaseline = "bottom";
  ctx.lineWidth = 4 * devicePixelRatio;
  ctx.lineJoin = "round";
  ctx.strokeStyle = getCssValue("--card");
  ctx.strokeText(text, x, y);
  ctx.fillStyle = colour;
  ctx.fillText(text, x, y);
}

function drawTolerance(uplot, ctx, tolerance) {
  const y = uplot.valToPos(tolerance, "y", true);
  const right = uplot.bbox.left + uplot.bbox.width;
  drawStraightLine(ctx, [uplot.bbox.left, y], [right, y], getCssValue("--text"), [5, 4]);
  const below = y - uplot.bbox.top < 16 * devicePixelRatio ? 16 : -2;
  writeText(ctx, `tolerance ${formatNumber(tolerance, 3)}`, right - 6 * devicePixelRatio, y + below * devicePixelRatio, getCssValue("--text"), "right");
}

// Mark the first step beyond the tolerance.
function drawFirstBeyond(uplot, ctx, plot, { run, pair, xs, values }) {
  const step = pair.beyond[plot.metric];
  if (step === null || step === undefined) return;
  const entry = lowerBound(pair.steps, step);
  const x = uplot.valToPos(xs[entry], "x", true);
  const y = values[entry] === Infinity ? uplot.bbox.top : uplot.valToPos(values[entry], "y", true);
  drawStraightLine(ctx, [x, uplot.bbox.top], [x, uplot.bbox.top + uplot.bbox.height], getColour(run), [2, 2]);
  ctx.fillStyle = getCssValue("--card");
  ctx.strokeStyle = getColour(run);
  ctx.lineWidth = 2 * devicePixelRatio;
  ctx.beginPath();
  ctx.arc(x, y, 4 * devicePixelRatio, 0, 2 * Math.PI);
  ctx.fill();
  ctx.stroke();
  const hasRoom = x < uplot.bbox.left + uplot.bbox.width * 0.7;
  const side = (hasRoom ? 8 : -8) * devicePixelRatio;
  writeText(ctx, `step ${formatCount(step)}: beyond`, x + side, uplot.bbox.top + 18 * devicePixelRatio, getColour(run), hasRoom ? "left" : "right");
}

// Mark the events of each run: resumed, restarted, another number of replicas, ended early.
function drawEvents(uplot, ctx, plot) {
  let row = 0;
  for (const run of getVisibleRuns().filter(({ marks }) => marks.length)) {
    row += 1;
    for (const { step, text } of run.marks) {
      const entry = Math.min(lowerBound(run.x.step, step), run.x.step.length - 1);
      const x = uplot.valToPos(run.x[view.axis][entry], "x", true);
      drawStraightLine(ctx, [x, uplot.bbox.top], [x, uplot.bbox.top + uplot.bbox.height], getColour(run), [1, 3]);
      const hasRoom = x < uplot.bbox.left + uplot.bbox.width * 0.75;
      const y = uplot.bbox.top + uplot.bbox.height - (8 + 16 * (row - 1)) * devicePixelRatio;
      if (plot.id === "loss") writeText(ctx, text, x + (hasRoom ? 5 : -5) * devicePixelRatio, y, getColour(run), hasRoom ? "left" : "right");
    }
  }
}
