// Reduction of curves to one value for each column of pixels, so that long curves draw fast and keep their extremes.
// `xs` are the ascending x values of a curve. `view` is the visible part of the x-axis, from view.low to view.high.

// Return the last, smallest and largest value in each of `count` columns. A column without values is undefined, and the
// line continues across it. A column whose values are not finite is null, and the line has a gap there.
function buildColumns(xs, curve, view, count) {
  const last = new Array(count).fill(undefined);
  const smallest = new Array(count).fill(undefined);
  const largest = new Array(count).fill(undefined);
  const scale = (count - 1) / (view.high - view.low || 1);
  const begin = lowerBound(xs, view.low);
  let end = begin;
  for (; end < xs.length && xs[end] <= view.high; end++) {
    const column = Math.round((xs[end] - view.low) * scale);
    const value = curve.last[end];
    if (Number.isFinite(value)) last[column] = value;
    else if (last[column] === undefined) last[column] = null;
    const low = curve.min ? curve.min[end] : value;
    const high = curve.max ? curve.max[end] : value;
    if (Number.isFinite(low) && !(low > smallest[column])) smallest[column] = low; // also if there is none yet
    if (Number.isFinite(high) && !(high < largest[column])) largest[column] = high;
  }
  if (last[0] === undefined) last[0] = interpolate(xs, curve.last, begin, view.low);
  if (last[count - 1] === undefined) last[count - 1] = interpolate(xs, curve.last, end, view.high);
  return { last, smallest, largest };
}

// Return the value at `x` on the straight line between the entries before and at `index`, so that a curve reaches the
// edge of the plot.
function interpolate(xs, values, index, x) {
  if (index === 0 || index >= xs.length) return undefined;
  const share = (x - xs[index - 1]) / (xs[index] - xs[index - 1] || 1);
  const value = values[index - 1] + share * (values[index] - values[index - 1]);
  return Number.isFinite(value) ? value : undefined;
}

// Return the largest difference in each of at most `limit` columns, with the x values of the edges of each column.
function buildEnvelope(xs, values, view, limit) {
  const begin = lowerBound(xs, view.low);
  const end = lowerBound(xs, view.high + 1e-9 * Math.abs(view.high));
  const count = Math.max(1, Math.min(limit, end - begin));
  const columns = Array.from({ length: count }, () => ({ from: 0, to: 0, value: undefined }));
  for (let c = 0; c < count; c++) {
    const from = begin + Math.floor((c * (end - begin)) / count);
    const to = begin + Math.floor(((c + 1) * (end - begin)) / count);
    let value;
    for (let i = from; i < to; i++) if (!(values[i] <= value)) value = values[i];
    const edge = (i) => (i >= xs.length ? xs[xs.length - 1] : i <= 0 ? xs[0] : (xs[i - 1] + xs[i]) / 2);
    columns[c] = { from: edge(from), to: edge(to), value };
  }
  return end > begin ? columns : [];
}

// Return the smallest and the largest finite value of all lists; with `positive`, of their positive values.
function findExtent(lists, positive = false) {
  let low = Infinity;
  let high = -Infinity;
  for (const list of lists) {
    for (const value of list) {
      if (value === undefined || value === null || !Number.isFinite(value) || (positive && value <= 0)) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  return [low, high];
}
