// Under the pointer, or where the keys have moved to: the step, each run's value, and its difference from the reference.
const readout = document.getElementById("readout");
const spoken = document.getElementById("spoken");
let active; // the plot that the reader is on

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

// What each run has at a place of the x-axis: [run, value, difference].
function valuesAt(plot, x) {
  return visibleRuns().map((run) => {
    const shown = plot.kind === "difference" ? run.curves[plot.metric] && { xs: run.x[view.axis], ...run.curves[plot.metric] } : curveOf(plot, run);
    const at = shown ? nearest(shown.xs, x) : -1;
    if (at < 0) return { run };
    const value = smooths(plot) ? smoothed(run, plot.metric, view.window)[at] : shown.last[at];
    const found = { run, value, at, x: shown.xs[at] };
    if (plot.kind === "evaluation" || plot.metric === "learning_rate") return found;
    const difference = differenceOf(plot, run);
    const there = difference ? nearest(difference.xs, x) : -1;
    return there < 0 ? found : { ...found, difference: difference.values[there] };
  });
}

// A step, or where an entry stands for several, all of them.
function stepsAt(run, at) {
  const last = run.x.step[at];
  const first = run.first ? run.first[at] : last;
  return first === last ? `step ${counted(last)}` : `steps ${counted(first)} to ${counted(last)}`;
}

function heading(plot, x, found) {
  const own = found.find(({ at, run }) => at !== undefined && run.index === view.reference) ?? found.find(({ at }) => at !== undefined);
  if (!own) return axisValue(view.axis, x);
  const step = plot.kind === "evaluation" ? `step ${counted(own.run.evals.step[own.at])}` : stepsAt(own.run, own.at);
  return view.axis === "step" ? step : `${step}, ${axisValue(view.axis, own.x)}`;
}

function shownDifference(value) {
  if (value === undefined) return "";
  return value === 0 ? "identical" : `Δ ${measured(value, 3)}`;
}

function shownValue(plot, value) {
  return plot.metric === "accuracy" && Number.isFinite(value) ? `${(100 * value).toFixed(2)}%` : measured(value, 8);
}

function fill(plot, x) {
  const found = valuesAt(plot, x);
  const title = heading(plot, x, found);
  readout.replaceChildren(element("strong", { textContent: title }), ...found.map(({ run, value, difference }) => {
    const swatch = element("i", { className: "dot" });
    swatch.style.background = colourOf(run);
    return element("div", {},
      swatch,
      element("span", { className: "name", textContent: run.label }),
      element("b", { textContent: shownValue(plot, value) }),
      element("span", { className: "soft", textContent: run.index === view.reference ? "reference" : shownDifference(difference) }));
  }));
  return `${title}. ${found.map(({ run, value, difference }) => `${run.label} ${shownValue(plot, value)} ${shownDifference(difference)}`).join("; ")}`;
}

// uPlot's hook, for every move of the cursor over a plot.
function moved(u, plot) {
  if (plot !== active) return;
  if (!(u.cursor.left >= 0)) return hide();
  const x = u.posToVal(u.cursor.left, "x");
  for (const other of plots) {
    if (other !== plot && other.uplot) other.uplot.setCursor({ left: other.uplot.valToPos(x, "x"), top: 1 }, false);
  }
  fill(plot, x);
  const box = plot.place.getBoundingClientRect();
  const left = box.left + scrollX + u.over.offsetLeft + u.cursor.left;
  readout.hidden = false;
  const wanted = left + 16 + readout.offsetWidth > scrollX + innerWidth - 8 ? left - 16 - readout.offsetWidth : left + 16;
  readout.style.left = `${Math.max(scrollX + 8, wanted)}px`;
  readout.style.top = `${box.top + scrollY + Math.max(0, Math.min(u.cursor.top, box.height - readout.offsetHeight - 20))}px`;
}

function hide() {
  readout.hidden = true;
  for (const { uplot } of plots) uplot?.setCursor({ left: -10, top: -10 }, false);
}

// uPlot's hook: the reader has dragged over a part of a plot.
function selected(u) {
  if (u.select.width < 4) return;
  zoomTo(u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x"));
  requestAnimationFrame(redraw); // when uPlot is done with this event: its plot is replaced
}

// The keys of a plot that has the focus.
function onKey(event, plot) {
  const { uplot } = plot;
  const run = RUNS[view.reference].x.step.length && view.shown[view.reference] ? RUNS[view.reference] : visibleRuns()[0];
  if (!run || event.ctrlKey || event.metaKey || event.altKey) return;
  const xs = plot.kind === "evaluation" ? run.evals[view.axis] : run.x[view.axis];
  const here = uplot.cursor.left >= 0 ? uplot.posToVal(uplot.cursor.left, "x") : (view.low + view.high) / 2;
  const at = nearest(xs, here);
  const far = event.shiftKey ? 10 : 1;
  const moves = { ArrowLeft: at - far, ArrowRight: at + far, Home: lowerBound(xs, view.low), End: lowerBound(xs, view.high) };
  const zooms = { "+": 0.5, "=": 0.5, "-": 2 };
  if (event.key in moves) {
    const x = xs[Math.max(0, Math.min(xs.length - 1, moves[event.key]))];
    if (x < view.low || x > view.high) pan(x < view.low ? -0.5 : 0.5);
    active = plot;
    plot.uplot.setCursor({ left: plot.uplot.valToPos(x, "x"), top: 20 });
    spoken.textContent = fill(plot, x);
  } else if (event.key in zooms) {
    const width = (view.high - view.low) * zooms[event.key];
    zoomTo(here - width / 2, here + width / 2);
    redraw();
  } else if (event.key === "0" || event.key === "Escape") {
    resetView();
    redraw();
  } else return;
  event.preventDefault();
}

function pan(share) {
  const width = view.high - view.low;
  zoomTo(view.low + share * width, view.low + share * width + width);
  redraw();
}

for (const plot of plots) {
  plot.place.addEventListener("keydown", (event) => onKey(event, plot));
  plot.place.addEventListener("mouseenter", () => { active = plot; });
  plot.place.addEventListener("mouseleave", () => { active = undefined; hide(); });
  plot.place.addEventListener("blur", hide);
  plot.place.addEventListener("dblclick", () => { resetView(); redraw(); });
}
