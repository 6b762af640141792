// The plots: one uPlot each, drawn from columns of pixels.
const DIFFERENCE_COLUMN = 3; // pixels
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const colourOf = (run) => css(`--c${run.index % 8}`);

const plots = [...document.querySelectorAll("[data-plot]")].map((figure) => ({
  figure,
  id: figure.dataset.plot,
  metric: figure.dataset.metric,
  kind: figure.dataset.kind, // curve, difference or evaluation
  place: figure.querySelector(".plot"),
  caption: figure.querySelector(".caption"),
}));

// The curve of a run in a plot, and where it lies on the x-axis; undefined where the run has none.
function curveOf(plot, run) {
  if (plot.kind === "evaluation") return run.evals[plot.metric] && { xs: run.evals[view.axis], last: run.evals[plot.metric] };
  const curve = run.curves[plot.metric];
  return curve && run.x[view.axis].length ? { xs: run.x[view.axis], ...curve } : undefined;
}

function differenceOf(plot, run) {
  const pair = run.index === view.reference ? undefined : pairOf(run.index, view.reference);
  if (!pair || !pair.steps.length || Number.isNaN(pair[plot.metric][0])) return undefined;
  return { pair, xs: pairX(pair, run, view.axis), values: pair[plot.metric] };
}

const smooths = (plot) => view.window > 1 && plot.kind === "curve" && plot.metric !== "learning_rate";
const isLog = (plot) => plot.kind === "difference" || (view.log && plot.metric === "loss");

// Work out what a plot shows now: a list of layers, each a run with its columns or its envelope.
function layersOf(plot, width) {
  plot.layers = [];
  for (const run of visibleRuns()) {
    if (plot.kind === "difference") {
      const found = differenceOf(plot, run);
      if (found) plot.layers.push({ run, ...found, columns: envelopeOf(found.xs, found.values, view, width / DIFFERENCE_COLUMN) });
      continue;
    }
    const curve = curveOf(plot, run);
    if (!curve) continue;
    const raw = columnsOf(curve.xs, curve, view, width);
    const mean = smooths(plot) && { last: smoothed(run, plot.metric, view.window) };
    plot.layers.push({ run, raw, line: mean ? columnsOf(curve.xs, mean, view, width).last : raw.last });
  }
}

function yRange(plot) {
  const log = isLog(plot);
  const lists = plot.layers.flatMap((layer) => (layer.columns
    ? [layer.columns.map(({ value }) => value), [layer.pair.tolerance[plot.metric]]]
    : [layer.raw.least, layer.raw.most, layer.line]));
  let [low, high] = extent(lists, log);
  if (!(low <= high)) return log ? [1e-9, 1e-4] : [0, 1];
  if (log) return plot.kind === "difference" ? [10 ** (Math.floor(Math.log10(low)) - 1), 10 ** Math.ceil(Math.log10(high) + 0.3)] : [low * 0.95, high * 1.05];
  const size = Math.max(Math.abs(low), Math.abs(high));
  const room = (high - low > size * 1e-4 ? high - low : size || 1) * 0.06; // what is nearly the same looks the same
  return [low >= 0 && low < room * 4 ? 0 : low - room, high + room];
}

function dataOf(plot, width) {
  const xs = Array.from({ length: width }, (_, i) => view.low + (i * (view.high - view.low)) / (width - 1));
  const log = isLog(plot);
  const drawable = (values) => (log ? values.map((value) => (value <= 0 ? null : value)) : values);
  const series = plot.layers.flatMap(({ raw, line }) => (!raw ? [] : smooths(plot) ? [drawable(raw.last), drawable(line)] : [drawable(line)]));
  return [xs, ...series];
}

function seriesOf(plot) {
  const points = { show: plot.kind === "evaluation", size: 7 };
  return plot.layers.flatMap(({ run, raw }) => {
    if (!raw) return [];
    const reference = run.index === view.reference;
    const line = { stroke: colourOf(run), width: reference ? 5 : 1.8, dash: run.dash, points: { ...points, fill: colourOf(run) } };
    const faint = { stroke: `${colourOf(run)}44`, width: 1, points: { show: false } };
    return smooths(plot) ? [faint, line] : [line];
  });
}

// The reference first and wide: what coincides with it is drawn on it.
const inDrawingOrder = (layers) => layers.sort((a, b) => (b.run.index === view.reference) - (a.run.index === view.reference));

function logSplits(u, scale, low, high) {
  const powers = [];
  for (let power = Math.ceil(Math.log10(low) - 1e-9); power <= Math.floor(Math.log10(high) + 1e-9); power++) powers.push(power);
  const step = Math.max(1, Math.ceil(powers.length / Math.max(2, u.height / 45)));
  if (powers.length > 1) return powers.filter((power) => power % step === 0).map((power) => 10 ** power);
  return Array.from({ length: 5 }, (_, i) => +(low * (high / low) ** (i / 4)).toPrecision(2));
}

// Values of an axis, with as many digits as tell them apart.
function distinct(values) {
  const shown = [4, 5, 6, 7, 8].map((digits) => values.map((value) => measured(value, digits)));
  return shown.find((texts) => new Set(texts).size === texts.length) ?? shown[shown.length - 1];
}

function draw(plot) {
  const width = Math.max(200, Math.floor(plot.place.clientWidth));
  const inner = Math.max(100, width - 84);
  layersOf(plot, inner);
  inDrawingOrder(plot.layers);
  const log = isLog(plot);
  const axis = { stroke: css("--soft"), grid: { stroke: css("--grid"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
  const percent = plot.metric === "accuracy";
  plot.uplot?.destroy();
  plot.uplot = new uPlot({
    width,
    height: plot.place.clientHeight,
    padding: [12, 16, 0, 0],
    legend: { show: false },
    cursor: { drag: { x: true, y: false, setScale: false }, points: { show: false }, y: false },
    scales: {
      x: { time: false, range: () => [view.low, view.high] },
      y: { distr: log ? 3 : 1, range: () => yRange(plot) },
    },
    axes: [
      { ...axis, label: view.axis, labelSize: 20, labelFont: "12px system-ui, sans-serif", size: 30, values: (u, splits) => splits.map(compact) },
      {
        ...axis,
        size: 68,
        ...(log && { splits: logSplits, filter: (u, splits) => splits }),
        values: (u, splits) => (percent ? splits.map((v) => `${+(100 * v).toFixed(1)}%`) : distinct(splits)),
      },
    ],
    series: [{}, ...seriesOf(plot)],
    hooks: {
      drawAxes: [(u) => drawBands(u, plot)],
      draw: [(u) => drawOverlay(u, plot)],
      setSelect: [(u) => selected(u)],
      setCursor: [(u) => moved(u, plot)],
    },
  }, dataOf(plot, inner), plot.place);
  describe(plot);
}
