// The data of the page: runs with their curves, and the differences of every pair.
const DATA = JSON.parse(document.getElementById("data").textContent);
const KINDS = { f8: Float64Array, f4: Float32Array };

const arrays = new Map();

function decoded(index) {
  if (!arrays.has(index)) {
    const [kind, text] = DATA.arrays[index].split(":");
    arrays.set(index, new KINDS[kind](Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer));
  }
  return arrays.get(index);
}

const decodedAll = (entries) => Object.fromEntries(Object.entries(entries).map(([key, entry]) => [key, decoded(entry)]));

const RUNS = DATA.runs.map((run, index) => {
  const curves = Object.fromEntries(Object.entries(run.curves).map(([name, curve]) => [name, decodedAll(curve)]));
  return { ...run, index, curves, x: decodedAll(run.x), evals: decodedAll(run.evals), first: run.first === undefined ? undefined : decoded(run.first) };
});

const PAIRS = DATA.pairs.map((pair) => ({
  ...pair, // decoded when they are drawn: most pairs never are
  get steps() { return decoded(pair.steps); },
  get loss() { return decoded(pair.loss); },
  get grad_norm() { return decoded(pair.grad_norm); },
}));

const pairOf = (one, other) => PAIRS.find(({ a, b }) => (a === one && b === other) || (a === other && b === one));

// The index of the first entry of an ascending array that is not below a value.
function lowerBound(values, value) {
  let low = 0;
  let high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

// The index of the entry that is closest to a value; -1 where there is none.
function nearest(values, value) {
  const above = lowerBound(values, value);
  if (above === 0) return values.length ? 0 : -1;
  if (above === values.length) return values.length - 1;
  return values[above] - value < value - values[above - 1] ? above : above - 1;
}

// Where the common steps of a pair lie on an axis of one of its runs.
const places = new Map();
function pairX(pair, run, axis) {
  if (axis === "step") return pair.steps;
  const key = `${PAIRS.indexOf(pair)} ${run.index} ${axis}`;
  if (!places.has(key)) {
    const last = run.x.step.length - 1;
    places.set(key, pair.steps.map((step) => run.x[axis][Math.min(lowerBound(run.x.step, step), last)]));
  }
  return places.get(key);
}

// The mean over a window of steps around each entry, values that are not finite left out.
const smoothCurves = new Map();
function smoothed(run, name, window) {
  const key = `${run.index} ${name} ${window}`;
  if (!smoothCurves.has(key)) smoothCurves.set(key, runningMean(run, run.curves[name], window));
  return smoothCurves.get(key);
}

function runningMean(run, curve, window) {
  const values = curve.mean ?? curve.last;
  const half = Math.floor((window * values.length) / run.steps / 2);
  const sums = new Float64Array(values.length + 1);
  const counts = new Float64Array(values.length + 1);
  values.forEach((value, i) => {
    sums[i + 1] = sums[i] + (Number.isFinite(value) ? value : 0);
    counts[i + 1] = counts[i] + Number.isFinite(value);
  });
  return values.map((value, i) => {
    const around = Math.min(half, i, values.length - 1 - i); // the same on both sides, so that a trend stays
    const [from, to] = [i - around, i + around + 1];
    return Number.isFinite(value) ? (sums[to] - sums[from]) / (counts[to] - counts[from]) : NaN;
  });
}
