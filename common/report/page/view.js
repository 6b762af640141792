// Choices of the reader, which apply to all plots.
const view = {
  axis: DATA.axis,
  reference: DATA.reference,
  shown: RUNS.map(() => true),
  log: false, // whether the loss has a logarithmic axis
  window: 1, // steps of the running mean; 1 is the raw curve
  low: 0, // the visible part of the x-axis
  high: 1,
  whole: [0, 1], // the x values that can be shown: the range of all visible runs
};

const getVisibleRuns = () => RUNS.filter((run) => view.shown[run.index]);

// Widen the view to all visible runs.
function resetView() {
  const runs = getVisibleRuns().length ? getVisibleRuns() : RUNS;
  const [low, high] = findExtent(runs.flatMap((run) => {
    const xs = run.x[view.axis];
    const evals = run.evals[view.axis];
    return [[xs[0], xs[xs.length - 1]], [evals[0], evals[evals.length - 1]]];
  }));
  view.low = Number.isFinite(low) ? low : 0;
  view.high = Number.isFinite(high) ? high : 1;
  if (view.high === view.low) view.high = view.low + 1;
  view.whole = [view.low, view.high];
}

// Show the part of the x-axis from `low` to `high`, moved and shortened to lie within view.whole.
function zoomTo(low, high) {
  const [first, last] = view.whole;
  const width = Math.min(Math.max(high - low, (last - first) * 1e-6), last - first);
  view.low = Math.min(Math.max(low, first), last - width);
  view.high = view.low + width;
}

const isZoomed = () => view.low > view.whole[0] || view.high < view.whole[1];

const countFormat = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const compactFormat = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 4 });

// Format a count: 12,000, or 12K on axes.
const formatCount = (value) => countFormat.format(value);
const formatCompact = (value) => (Math.abs(value) < 1e4 ? String(+value.toPrecision(6)) : compactFormat.format(value));

// Format a measured number; small ones as powers of ten.
function formatNumber(value, digits = 6) {
  if (value === undefined || value === null) return "-";
  if (!Number.isFinite(value)) return "not finite";
  const size = Math.abs(value);
  if (size === 0 || (size >= 1e-3 && size < 1e6)) return String(+value.toPrecision(digits));
  const [factor, power] = value.toExponential(Math.min(digits - 1, 3)).split("e");
  return `${+factor}e${power.replace("+", "")}`;
}

function formatAxisValue(axis, value) {
  return axis === "seconds" ? `${formatNumber(value, 5)} s` : axis === "step" ? `step ${formatCount(value)}` : `${formatCount(value)} ${axis}`;
}
