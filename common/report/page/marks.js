// What is drawn beside the lines: bands of extremes, envelopes of differences, tolerances, and what happened to a run.

function clipped(u, paint) {
  const { left, top, width, height } = u.bbox;
  u.ctx.save();
  u.ctx.beginPath();
  u.ctx.rect(left, top, width, height);
  u.ctx.clip();
  paint(u.ctx);
  u.ctx.restore();
}

// Between the least and the largest value of each column of pixels.
function drawBands(u, plot) {
  clipped(u, (ctx) => {
    ctx.globalAlpha = 0.22;
    for (const { run, raw } of plot.layers) {
      if (!raw) continue;
      ctx.fillStyle = colourOf(run);
      const wide = u.bbox.width / (raw.last.length - 1);
      raw.most.forEach((most, i) => {
        const least = raw.least[i];
        if (!(most > least) || (isLog(plot) && !(least > 0))) return;
        const top = u.valToPos(most, "y", true);
        ctx.fillRect(u.bbox.left + (i - 0.5) * wide, top, wide, u.valToPos(least, "y", true) - top);
      });
    }
  });
}

function drawOverlay(u, plot) {
  clipped(u, (ctx) => {
    if (plot.kind === "difference") {
      plot.layers.forEach((layer, place) => drawEnvelope(u, ctx, layer, place));
      for (const tolerance of new Set(plot.layers.map(({ pair }) => pair.tolerance[plot.metric]))) drawTolerance(u, ctx, tolerance);
      for (const layer of plot.layers) drawBeyond(u, ctx, plot, layer);
    }
    drawMarks(u, ctx, plot);
  });
}

// A step for each column; a line along the bottom where the runs are identical, one below the other.
function drawEnvelope(u, ctx, { run, columns }, order) {
  const bottom = u.bbox.top + u.bbox.height - devicePixelRatio;
  const strip = bottom - (3 + 4 * Math.min(order, 9)) * devicePixelRatio;
  const place = (value) => (value === Infinity ? u.bbox.top : u.valToPos(value, "y", true));
  const outline = new Path2D();
  let before;
  for (const { from, to, value } of columns) {
    const [left, right] = [u.valToPos(from, "x", true), u.valToPos(to, "x", true)];
    if (value > 0) {
      const y = place(value);
      if (before > 0) outline.lineTo(left, y);
      else outline.moveTo(left, y);
      outline.lineTo(Math.max(right, left + devicePixelRatio), y);
      ctx.globalAlpha = 0.1;
      ctx.fillStyle = colourOf(run);
      ctx.fillRect(left, y, right - left, bottom - y);
    } else if (value === 0) {
      ctx.globalAlpha = 0.9;
      ctx.fillStyle = colourOf(run);
      ctx.fillRect(left, strip, right - left, 3 * devicePixelRatio);
    }
    before = value;
  }
  ctx.globalAlpha = 1;
  ctx.strokeStyle = colourOf(run);
  ctx.lineWidth = 1.5 * devicePixelRatio;
  ctx.stroke(outline);
}

function line(ctx, from, to, colour, dash) {
  ctx.strokeStyle = colour;
  ctx.lineWidth = devicePixelRatio;
  ctx.setLineDash(dash.map((length) => length * devicePixelRatio));
  ctx.beginPath();
  ctx.moveTo(...from);
  ctx.lineTo(...to);
  ctx.stroke();
  ctx.setLineDash([]);
}

function write(ctx, text, x, y, colour, align) {
  ctx.font = `${12 * devicePixelRatio}px system-ui, sans-serif`;
  ctx.textAlign = align;
  ctx.textBaseline = "bottom";
  ctx.lineWidth = 4 * devicePixelRatio;
  ctx.lineJoin = "round";
  ctx.strokeStyle = css("--card");
  ctx.strokeText(text, x, y);
  ctx.fillStyle = colour;
  ctx.fillText(text, x, y);
}

function drawTolerance(u, ctx, tolerance) {
  const y = u.valToPos(tolerance, "y", true);
  const right = u.bbox.left + u.bbox.width;
  line(ctx, [u.bbox.left, y], [right, y], css("--text"), [5, 4]);
  const below = y - u.bbox.top < 16 * devicePixelRatio ? 16 : -2;
  write(ctx, `tolerance ${measured(tolerance, 3)}`, right - 6 * devicePixelRatio, y + below * devicePixelRatio, css("--text"), "right");
}

// The first step beyond the tolerance.
function drawBeyond(u, ctx, plot, { run, pair, xs, values }) {
  const step = pair.beyond[plot.metric];
  if (step === null || step === undefined) return;
  const at = lowerBound(pair.steps, step);
  const x = u.valToPos(xs[at], "x", true);
  const y = values[at] === Infinity ? u.bbox.top : u.valToPos(values[at], "y", true);
  line(ctx, [x, u.bbox.top], [x, u.bbox.top + u.bbox.height], colourOf(run), [2, 2]);
  ctx.fillStyle = css("--card");
  ctx.strokeStyle = colourOf(run);
  ctx.lineWidth = 2 * devicePixelRatio;
  ctx.beginPath();
  ctx.arc(x, y, 4 * devicePixelRatio, 0, 2 * Math.PI);
  ctx.fill();
  ctx.stroke();
  const room = x < u.bbox.left + u.bbox.width * 0.7;
  const side = (room ? 8 : -8) * devicePixelRatio;
  write(ctx, `step ${counted(step)}: beyond`, x + side, u.bbox.top + 18 * devicePixelRatio, colourOf(run), room ? "left" : "right");
}

// Resumed, restarted, another number of replicas, ended early.
function drawMarks(u, ctx, plot) {
  let row = 0;
  for (const run of visibleRuns().filter(({ marks }) => marks.length)) {
    row += 1;
    for (const { step, text } of run.marks) {
      const at = lowerBound(run.x.step, step);
      const x = u.valToPos(run.x[view.axis][Math.min(at, run.x.step.length - 1)], "x", true);
      line(ctx, [x, u.bbox.top], [x, u.bbox.top + u.bbox.height], colourOf(run), [1, 3]);
      const room = x < u.bbox.left + u.bbox.width * 0.75;
      const y = u.bbox.top + u.bbox.height - (8 + 16 * (row - 1)) * devicePixelRatio;
      if (plot.id === "loss") write(ctx, text, x + (room ? 5 : -5) * devicePixelRatio, y, colourOf(run), room ? "left" : "right");
    }
  }
}
