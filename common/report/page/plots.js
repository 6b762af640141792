// Plots: one uPlot chart for each figure, drawn from columns of pixels. columns.js computes them, and marks.js draws what
// uPlot does not.
const DIFFERENCE_COLUMN = 3; // width of a column of a difference, in pixels
const getCssValue = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const getColour = (run) => getCssValue(`--c${run.index % 8}`);

const plots = [...document.querySelectorAll("[data-plot]")].map((figure) => ({
  figure,
  id: figure.dataset.plot,
  metric: figure.dataset.metric,
  kind: figure.dataset.kind, // curve, difference or evaluation
  place: figure.querySelector(".plot"),
  caption: figure.querySelector(".caption"),
}));

// Return the curve of a run in a plot, and its positions on the x-axis; undefined if the run has none.
function getCurve(plot, run) {
  if (plot.kind === "evaluation") return run.evals[plot.metric] && { xs: run.evals[view.axis], last: run.evals[plot.metric] };
  const curve = run.curves[plot.metric];
  return curve && run.x[view.axis].length ? { xs: run.x[view.axis], ...curve } : undefined;
}

// Return the differences of a run from the reference; undefined if they have no common steps.
function getDifference(plot, run) {
  const pair = run.index === view.reference ? undefined : findPair(run.index, view.reference);
  if (!pair || !pair.steps.length || Number.isNaN(pair[plot.metric][0])) return undefined;
  return { pair, xs: getPairPositions(pair, run, view.axis), values: pair[plot.metric] };
}

const isSmoothed = (plot) => view.window > 1 && plot.kind === "curve" && plot.metric !== "learning_rate";
const isLog = (plot) => plot.kind === "difference" || (view.log && plot.metric === "loss");

// Set the layers that a plot shows now: for each run, its line and the values that it is made of.
function updateLayers(plot, width) {
  plot.layers = [];
  for (const run of getVisibleRuns()) {
    if (plot.kind === "difference") {
      const difference = getDifference(plot, run);
      if (difference) plot.layers.push({ run, ...difference, columns: buildEnvelope(difference.xs, difference.values, view, width / DIFFERENCE_COLUMN) });
      continue;
    }
    const curve = getCurve(plot, run);
    if (!curve) continue;
    const raw = buildColumns(curve.xs, curve, view, width);
    const mean = isSmoothed(plot) && { last: getSmoothCurve(run, plot.metric, view.window) };
    plot.layers.push({ run, raw, line: mean ? buildColumns(curve.xs, mean, view, width).last : raw.last });
  }
}

// Return the range of the y-axis, with room above and below the values.
function computeYRange(plot) {
  const log = isLog(plot);
  const lists = plot.layers.flatMap((layer) => (layer.columns
    ? [layer.columns.map(({ value }) => value), [layer.pair.tolerance[plot.metric]]]
    : [layer.raw.smallest, layer.raw.largest, layer.line]));
  let [low, high] = findExtent(lists, log);
  if (!(low <= high)) return log ? [1e-9, 1e-4] : [0, 1];
  if (log) return plot.kind === "difference" ? [10 ** (Math.floor(Math.log10(low)) - 1), 10 ** Math.ceil(Math.log10(high) + 0.3)] : [low * 0.95, high * 1.05];
  const size = Math.max(Math.abs(low), Math.abs(high));
  const room = (high - low > size * 1e-4 ? high - low : size || 1) * 0.06; // nearly equal values look equal
  return [low >= 0 && low < room * 4 ? 0 : low - room, high + room];
}

// Return uPlot's data: the x values, and the values of each series.
function buildData(plot, width) {
  const xs = Array.from({ length: width }, (_, i) => view.low + (i * (view.high - view.low)) / (width - 1));
  const log = isLog(plot);
  const drawable = (values) => (log ? values.map((value) => (value <= 0 ? null : value)) : values);
  const series = plot.layers.flatMap(({ raw, line }) => (!raw ? [] : isSmoothed(plot) ? [drawable(raw.last), drawable(line)] : [drawable(line)]));
  return [xs, ...series];
}

// Return uPlot's series: one line for each run, and a faint raw line if curves are smoothed.
function buildSeries(plot) {
  const points = { show: plot.kind === "evaluation", size: 7 };
  return plot.layers.flatMap(({ run, raw }) => {
    if (!raw) return [];
    const reference = run.index === view.reference;
    const line = { stroke: getColour(run), width: reference ? 5 : 1.8, dash: run.dash, points: { ...points, fill: getColour(run) } };
    const faint = { stroke: `${getColour(run)}44`, width: 1, points: { show: false } };
    return isSmoothed(plot) ? [faint, line] : [line];
  });
}

// The reference comes first and is wide, so that equal curves are visible on top of it.
const sortLayers = (layers) => layers.sort((a, b) => (b.run.index === view.reference) - (a.run.index === view.reference));

// Return the labelled values of a logarithmic axis.
function chooseLogSplits(uplot, scale, low, high) {
  const powers = [];
  for (let power = Math.ceil(Math.log10(low) - 1e-9); power <= Math.floor(Math.log10(high) + 1e-9); power++) powers.push(power);
  const step = Math.max(1, Math.ceil(powers.length / Math.max(2, uplot.height / 45)));
  if (powers.length > 1) return powers.filter((power) => power % step === 0).map((power) => 10 ** power);
  return Array.from({ length: 5 }, (_, i) => +(low * (high / low) ** (i / 4)).toPrecision(2));
}

// Format the values of an axis with as many digits as are needed to distinguish them.
function formatDistinct(values) {
  const candidates = [4, 5, 6, 7, 8].map((digits) => values.map((value) => formatNumber(value, digits)));
  return candidates.find((texts) => new Set(texts).size === texts.length) ?? candidates[candidates.length - 1];
}

function drawPlot(plot) {
  const width = Math.max(200, Math.floor(plot.place.clientWidth));
  const inner = Math.max(100, width - 84);
  updateLayers(plot, inner);
  sortLayers(plot.layers);
  const log = isLog(plot);
  const axis = { stroke: getCssValue("--soft"), grid: { stroke: getCssValue("--grid"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
  const isPercent = plot.metric === "accuracy";
  plot.uplot?.destroy();
  plot.uplot = new uPlot({
    width,
    height: plot.place.clientHeight,
    padding: [12, 16, 0, 0],
    legend: { show: false },
    cursor: { drag: { x: true, y: false, setScale: false }, points: { show: false }, y: false },
    scales: {
      x: { time: false, range: () => [view.low, view.high] },
      y: { distr: log ? 3 : 1, range: () => computeYRange(plot) },
    },
    axes: [
      { ...axis, label: view.axis, labelSize: 20, labelFont: "12px system-ui, sans-serif", size: 30, values: (uplot, splits) => splits.map(formatCompact) },
      {
        ...axis,
        size: 68,
        ...(log && { splits: chooseLogSplits, filter: (uplot, splits) => splits }),
        values: (uplot, splits) => (isPercent ? splits.map((v) => `${+(100 * v).toFixed(1)}%`) : formatDistinct(splits)),
      },
    ],
    series: [{}, ...buildSeries(plot)],
    hooks: {
      drawAxes: [(uplot) => drawBands(uplot, plot)],
      draw: [(uplot) => drawOverlay(uplot, plot)],
      setSelect: [(uplot) => zoomToSelection(uplot)],
      setCursor: [(uplot) => showReadout(uplot, plot)],
    },
  }, buildData(plot, inner), plot.place);
  describePlot(plot);
}
