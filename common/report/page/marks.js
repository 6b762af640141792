// Marks beside the lines: bands of extremes, envelopes of differences, tolerances, and events of a run.

// Paint inside the area of a plot.
function paintClipped(u, paint) {
  const { left, top, width, height } = u.bbox;
  u.ctx.save();
  u.ctx.beginPath();
  u.ctx.rect(left, top, width, height);
  u.ctx.clip();
  paint(u.ctx);
  u.ctx.restore();
}

// Fill the range between the smallest and the largest value of each column of pixels.
function drawBands(u, plot) {
  paintClipped(u, (ctx) => {
    ctx.globalAlpha = 0.22;
    for (const { run, raw } of plot.layers) {
      if (!raw) continue;
      ctx.fillStyle = getColour(run);
      const wide = u.bbox.width / (raw.last.length - 1);
      raw.largest.forEach((largest, i) => {
        const smallest = raw.smallest[i];
        if (!(largest > smallest) || (isLog(plot) && !(smallest > 0))) return;
        const top = u.valToPos(largest, "y", true);
        ctx.fillRect(u.bbox.left + (i - 0.5) * wide, top, wide, u.valToPos(smallest, "y", true) - top);
      });
    }
  });
}

function drawOverlay(u, plot) {
  paintClipped(u, (ctx) => {
    if (plot.kind === "difference") {
      plot.layers.forEach((layer, order) => drawEnvelope(u, ctx, layer, order));
      for (const tolerance of new Set(plot.layers.map(({ pair }) => pair.tolerance[plot.metric]))) drawTolerance(u, ctx, tolerance);
      for (const layer of plot.layers) drawFirstBeyond(u, ctx, plot, layer);
    }
    drawEvents(u, ctx, plot);
  });
}

// Draw a stair for each column. Columns in which the runs are identical have a line along the bottom of the plot instead;
// the lines of several runs lie below one another.
function drawEnvelope(u, ctx, { run, columns }, order) {
  const bottom = u.bbox.top + u.bbox.height - devicePixelRatio;
  const strip = bottom - (3 + 4 * Math.min(order, 9)) * devicePixelRatio;
  const toY = (value) => (value === Infinity ? u.bbox.top : u.valToPos(value, "y", true));
  const outline = new Path2D();
  let previous;
  for (const { from, to, value } of columns) {
    const [left, right] = [u.valToPos(from, "x", true), u.valToPos(to, "x", true)];
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

function drawTolerance(u, ctx, tolerance) {
  const y = u.valToPos(tolerance, "y", true);
  const right = u.bbox.left + u.bbox.width;
  drawStraightLine(ctx, [u.bbox.left, y], [right, y], getCssValue("--text"), [5, 4]);
  const below = y - u.bbox.top < 16 * devicePixelRatio ? 16 : -2;
  writeText(ctx, `tolerance ${formatNumber(tolerance, 3)}`, right - 6 * devicePixelRatio, y + below * devicePixelRatio, getCssValue("--text"), "right");
}

// Mark the first step beyond the tolerance.
function drawFirstBeyond(u, ctx, plot, { run, pair, xs, values }) {
  const step = pair.beyond[plot.metric];
  if (step === null || step === undefined) return;
  const at = lowerBound(pair.steps, step);
  const x = u.valToPos(xs[at], "x", true);
  const y = values[at] === Infinity ? u.bbox.top : u.valToPos(values[at], "y", true);
  drawStraightLine(ctx, [x, u.bbox.top], [x, u.bbox.top + u.bbox.height], getColour(run), [2, 2]);
  ctx.fillStyle = getCssValue("--card");
  ctx.strokeStyle = getColour(run);
  ctx.lineWidth = 2 * devicePixelRatio;
  ctx.beginPath();
  ctx.arc(x, y, 4 * devicePixelRatio, 0, 2 * Math.PI);
  ctx.fill();
  ctx.stroke();
  const hasRoom = x < u.bbox.left + u.bbox.width * 0.7;
  const side = (hasRoom ? 8 : -8) * devicePixelRatio;
  writeText(ctx, `step ${formatCount(step)}: beyond`, x + side, u.bbox.top + 18 * devicePixelRatio, getColour(run), hasRoom ? "left" : "right");
}

// Mark the events of each run: resumed, restarted, another number of replicas, ended early.
function drawEvents(u, ctx, plot) {
  let row = 0;
  for (const run of getVisibleRuns().filter(({ marks }) => marks.length)) {
    row += 1;
    for (const { step, text } of run.marks) {
      const at = lowerBound(run.x.step, step);
      const x = u.valToPos(run.x[view.axis][Math.min(at, run.x.step.length - 1)], "x", true);
      drawStraightLine(ctx, [x, u.bbox.top], [x, u.bbox.top + u.bbox.height], getColour(run), [1, 3]);
      const hasRoom = x < u.bbox.left + u.bbox.width * 0.75;
      const y = u.bbox.top + u.bbox.height - (8 + 16 * (row - 1)) * devicePixelRatio;
      if (plot.id === "loss") writeText(ctx, text, x + (hasRoom ? 5 : -5) * devicePixelRatio, y, getColour(run), hasRoom ? "left" : "right");
    }
  }
}
