// Data of the page: runs with their curves, and the differences of every pair. page_data.py says what DATA has.
// The scripts of the page are joined into one function, so each can use the names of the others.
const DATA = JSON.parse(document.getElementById("data").textContent);
const ARRAY_TYPES = { f8: Float64Array, f4: Float32Array };

const decodedArrays = new Map();

// Return an array by its index in DATA.arrays.
function decode(index) {
  if (!decodedArrays.has(index)) {
    const [kind, text] = DATA.arrays[index].split(":");
    decodedArrays.set(index, new ARRAY_TYPES[kind](Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer));
  }
  return decodedArrays.get(index);
}

const decodeAll = (entries) => Object.fromEntries(Object.entries(entries).map(([key, entry]) => [key, decode(entry)]));

const RUNS = DATA.runs.map((run, index) => {
  const curves = Object.fromEntries(Object.entries(run.curves).map(([name, curve]) => [name, decodeAll(curve)]));
  return { ...run, index, curves, x: decodeAll(run.x), evals: decodeAll(run.evals), first: run.first === undefined ? undefined : decode(run.first) };
});

const PAIRS = DATA.pairs.map((pair) => ({
  ...pair, // its arrays are decoded when they are first drawn, because most pairs are never drawn
  get steps() { return decode(pair.steps); },
  get loss() { return decode(pair.loss); },
  get grad_norm() { return decode(pair.grad_norm); },
}));

// Return the pair of two runs, given their indexes.
const findPair = (one, other) => PAIRS.find(({ a, b }) => (a === one && b === other) || (a === other && b === one));

// Return the index of the first entry of an ascending array that is not below a value.
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

// Return the index of the entry that is closest to a value; -1 for an empty array.
function findNearest(values, value) {
  const above = lowerBound(values, value);
  if (above === 0) return values.length ? 0 : -1;
  if (above === values.length) return values.length - 1;
  return values[above] - value < value - values[above - 1] ? above : above - 1;
}

// Return the x values of the common steps of a pair, such as the seconds that a run of the pair needed for them.
const pairPositions = new Map();
function getPairPositions(pair, run, axis) {
  if (axis === "step") return pair.steps;
  const key = `${PAIRS.indexOf(pair)} ${run.index} ${axis}`;
  if (!pairPositions.has(key)) {
    const last = run.x.step.length - 1;
    pairPositions.set(key, pair.steps.map((step) => run.x[axis][Math.min(lowerBound(run.x.step, step), last)]));
  }
  return pairPositions.get(key);
}

// Return a smooth curve: for each entry, the mean over a window of steps around it, without values that are not finite.
const smoothCurves = new Map();
function getSmoothCurve(run, name, window) {
  const key = `${run.index} ${name} ${window}`;
  if (!smoothCurves.has(key)) smoothCurves.set(key, computeRunningMean(run, run.curves[name], window));
  return smoothCurves.get(key);
}

function computeRunningMean(run, curve, window) {
  const values = curve.mean ?? curve.last;
  const half = Math.floor((window * values.length) / run.steps / 2);
  const sums = new Float64Array(values.length + 1);
  const counts = new Float64Array(values.length + 1);
  values.forEach((value, i) => {
    sums[i + 1] = sums[i] + (Number.isFinite(value) ? value : 0);
    counts[i + 1] = counts[i] + Number.isFinite(value);
  });
  return values.map((value, i) => {
    const reach = Math.min(half, i, values.length - 1 - i); // equal on both sides, so that a trend stays
    const [from, to] = [i - reach, i + reach + 1];
    return Number.isFinite(value) ? (sums[to] - sums[from]) / (counts[to] - counts[from]) : NaN;
  });
}
