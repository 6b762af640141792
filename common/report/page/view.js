// What the reader has chosen; every plot shows the same.
const view = {
  axis: DATA.axis,
  reference: DATA.reference,
  shown: RUNS.map(() => true),
  log: false,
  window: 1, // steps of the running mean; 1 is the raw curve
  low: 0,
  high: 1,
};

const visibleRuns = () => RUNS.filter((run) => view.shown[run.index]);

// Widen the view to all of what is shown.
function resetView() {
  const runs = visibleRuns().length ? visibleRuns() : RUNS;
  const [low, high] = extent(runs.flatMap((run) => {
    const xs = run.x[view.axis];
    const evals = run.evals[view.axis];
    return [[xs[0], xs[xs.length - 1]], [evals[0], evals[evals.length - 1]]];
  }));
  view.low = Number.isFinite(low) ? low : 0;
  view.high = Number.isFinite(high) ? high : 1;
  if (view.high === view.low) view.high = view.low + 1;
  view.whole = [view.low, view.high];
}

// Show the part from `low` to `high`, kept within the whole.
function zoomTo(low, high) {
  const [first, last] = view.whole;
  const width = Math.min(Math.max(high - low, (last - first) * 1e-6), last - first);
  view.low = Math.min(Math.max(low, first), last - width);
  view.high = view.low + width;
}

const zoomed = () => view.low > view.whole[0] || view.high < view.whole[1];

const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const compactForm = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 4 });

// A count for people: 12,000; on axes that are short of room 12K.
const counted = (value) => grouped.format(value);
const compact = (value) => (Math.abs(value) < 1e4 ? String(+value.toPrecision(6)) : compactForm.format(value));

// A measured number; small ones as powers of ten.
function measured(value, digits = 6) {
  if (value === undefined || value === null) return "-";
  if (!Number.isFinite(value)) return "not finite";
  const size = Math.abs(value);
  if (size === 0 || (size >= 1e-3 && size < 1e6)) return String(+value.toPrecision(digits));
  const [factor, power] = value.toExponential(Math.min(digits - 1, 3)).split("e");
  return `${+factor}e${power.replace("+", "")}`;
}

function axisValue(axis, value) {
  return axis === "seconds" ? `${measured(value, 5)} s` : axis === "step" ? `step ${counted(value)}` : `${counted(value)} ${axis}`;
}
