// Readout, a small box beside the pointer or the keyboard cursor: the step, the value of each run, and the difference of
// each run from the reference.
const readout = document.getElementById("readout");
const spoken = document.getElementById("spoken");
let activePlot; // the plot under the pointer or with the focus

// Create an element.
function createElement(tag, properties = {}, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}

// Return the value of each run at a position of the x-axis, and its difference from the reference.
function readValues(plot, x) {
  return getVisibleRuns().map((run) => {
    const curve = plot.kind === "difference" ? run.curves[plot.metric] && { xs: run.x[view.axis], ...run.curves[plot.metric] } : getCurve(plot, run);
    const entry = curve ? findNearest(curve.xs, x) : -1;
    if (entry < 0) return { run };
    const value = isSmoothed(plot) ? getSmoothCurve(run, plot.metric, view.window)[entry] : curve.last[entry];
    const reading = { run, value, entry, x: curve.xs[entry] };
    if (plot.kind === "evaluation" || plot.metric === "learning_rate") return reading;
    const difference = getDifference(plot, run);
    const index = difference ? findNearest(difference.xs, x) : -1;
    return index < 0 ? reading : { ...reading, difference: difference.values[index] };
  });
}

// Describe the step of an entry of a run's curves, or the range of its steps if an entry stands for several steps.
function describeSteps(run, entry) {
  const last = run.x.step[entry];
  const first = run.first ? run.first[entry] : last;
  return first === last ? `step ${formatCount(last)}` : `steps ${formatCount(first)} to ${formatCount(last)}`;
}

// Return the title of the readout: the step of the reference, or of the first run that has a value.
function buildHeading(plot, x, readings) {
  const known = readings.filter(({ entry }) => entry !== undefined);
  const reading = known.find(({ run }) => run.index === view.reference) ?? known[0];
  if (!reading) return formatAxisValue(view.axis, x);
  const step = plot.kind === "evaluation" ? `step ${formatCount(reading.run.evals.step[reading.entry])}` : describeSteps(reading.run, reading.entry);
  return view.axis === "step" ? step : `${step}, ${formatAxisValue(view.axis, reading.x)}`;
}

function formatDifference(value) {
  if (value === undefined) return "";
  return value === 0 ? "identical" : `Δ ${formatNumber(value, 3)}`;
}

function formatValue(plot, value) {
  return plot.metric === "accuracy" && Number.isFinite(value) ? `${(100 * value).toFixed(2)}%` : formatNumber(value, 8);
}

// Write the readout. Returns its text for screen readers.
function fillReadout(plot, x) {
  const readings = readValues(plot, x);
  const title = buildHeading(plot, x, readings);
  readout.replaceChildren(createElement("strong", { textContent: title }), ...readings.map(({ run, value, difference }) => {
    const swatch = createElement("i", { className: "dot" });
    swatch.style.background = getColour(run);
    return createElement("div", {},
      swatch,
      createElement("span", { className: "name", textContent: run.label }),
      createElement("b", { textContent: formatValue(plot, value) }),
      createElement("span", { className: "soft", textContent: run.index === view.reference ? "reference" : formatDifference(difference) }));
  }));
  return `${title}. ${readings.map(({ run, value, difference }) => `${run.label} ${formatValue(plot, value)} ${formatDifference(difference)}`).join("; ")}`;
}

// Show the readout. uPlot calls this for every move of the cursor.
function showReadout(uplot, plot) {
  if (plot !== activePlot) return;
  if (!(uplot.cursor.left >= 0)) return hideReadout();
  const x = uplot.posToVal(uplot.cursor.left, "x");
  for (const other of plots) {
    if (other !== plot && other.uplot) other.uplot.setCursor({ left: other.uplot.valToPos(x, "x"), top: 1 }, false);
  }
  fillReadout(plot, x);
  const box = plot.place.getBoundingClientRect();
  const left = box.left + scrollX + uplot.over.offsetLeft + uplot.cursor.left;
  readout.hidden = false;
  const isNearEdge = left + 16 + readout.offsetWidth > scrollX + innerWidth - 8;
  readout.style.left = `${Math.max(scrollX + 8, isNearEdge ? left - 16 - readout.offsetWidth : left + 16)}px`;
  readout.style.top = `${box.top + scrollY + Math.max(0, Math.min(uplot.cursor.top, box.height - readout.offsetHeight - 20))}px`;
}

function hideReadout() {
  readout.hidden = true;
  for (const { uplot } of plots) uplot?.setCursor({ left: -10, top: -10 }, false);
}

// Zoom to the part of a plot that the reader has dragged over. uPlot calls this.
function zoomToSelection(uplot) {
  if (uplot.select.width < 4) return;
  zoomTo(uplot.posToVal(uplot.select.left, "x"), uplot.posToVal(uplot.select.left + uplot.select.width, "x"));
  requestAnimationFrame(redraw); // later, because this replaces the plot whose event uPlot still handles
}

// Handle the keys of a plot that has the focus.
function handleKey(event, plot) {
  const { uplot } = plot;
  const run = RUNS[view.reference].x.step.length && view.shown[view.reference] ? RUNS[view.reference] : getVisibleRuns()[0];
  if (!run || event.ctrlKey || event.metaKey || event.altKey) return;
  const xs = plot.kind === "evaluation" ? run.evals[view.axis] : run.x[view.axis];
  const cursor = uplot.cursor.left >= 0 ? uplot.posToVal(uplot.cursor.left, "x") : (view.low + view.high) / 2;
  const entry = findNearest(xs, cursor);
  const stride = event.shiftKey ? 10 : 1;
  const moves = { ArrowLeft: entry - stride, ArrowRight: entry + stride, Home: lowerBound(xs, view.low), End: lowerBound(xs, view.high) };
  const zooms = { "+": 0.5, "=": 0.5, "-": 2 };
  if (event.key in moves) {
    const x = xs[Math.max(0, Math.min(xs.length - 1, moves[event.key]))];
    if (x < view.low || x > view.high) pan(x < view.low ? -0.5 : 0.5);
    activePlot = plot;
    plot.uplot.setCursor({ left: plot.uplot.valToPos(x, "x"), top: 20 });
    spoken.textContent = fillReadout(plot, x);
  } else if (event.key in zooms) {
    const width = (view.high - view.low) * zooms[event.key];
    zoomTo(cursor - width / 2, cursor + width / 2);
    redraw();
  } else if (event.key === "0" || event.key === "Escape") {
    resetView();
    redraw();
  } else return;
  event.preventDefault();
}

// Move the visible part of the x-axis by a share of its width.
function pan(share) {
  const width = view.high - view.low;
  zoomTo(view.low + share * width, view.low + share * width + width);
  redraw();
}

for (const plot of plots) {
  plot.place.addEventListener("keydown", (event) => handleKey(event, plot));
  plot.place.addEventListener("mouseenter", () => { activePlot = plot; });
  plot.place.addEventListener("mouseleave", () => { activePlot = undefined; hideReadout(); });
  plot.place.addEventListener("blur", hideReadout);
  plot.place.addEventListener("dblclick", () => { resetView(); redraw(); });
}
