// One value for each column of pixels, so that a plot of any length is drawn at once and loses no extreme.
// A value that was never recorded is undefined: the line goes on. One that is not finite is null: the line has a gap.

function columnsOf(xs, curve, view, count) {
  const last = new Array(count).fill(undefined);
  const least = new Array(count).fill(undefined);
  const most = new Array(count).fill(undefined);
  const scale = (count - 1) / (view.high - view.low || 1);
  const begin = lowerBound(xs, view.low);
  let end = begin;
  for (; end < xs.length && xs[end] <= view.high; end++) {
    const at = Math.round((xs[end] - view.low) * scale);
    const value = curve.last[end];
    if (Number.isFinite(value)) last[at] = value;
    else if (last[at] === undefined) last[at] = null;
    const low = curve.min ? curve.min[end] : value;
    const high = curve.max ? curve.max[end] : value;
    if (Number.isFinite(low) && !(low > least[at])) least[at] = low;
    if (Number.isFinite(high) && !(high < most[at])) most[at] = high;
  }
  if (last[0] === undefined) last[0] = between(xs, curve.last, begin, view.low);
  if (last[count - 1] === undefined) last[count - 1] = between(xs, curve.last, end, view.high);
  return { last, least, most };
}

// The value on the straight line from the entry before `index` to that at `index`: a curve reaches the edge of the plot.
function between(xs, values, index, x) {
  if (index === 0 || index >= xs.length) return undefined;
  const share = (x - xs[index - 1]) / (xs[index] - xs[index - 1] || 1);
  const value = values[index - 1] + share * (values[index] - values[index - 1]);
  return Number.isFinite(value) ? value : undefined;
}

// The largest difference of each column; `identical` where all of its differences are exactly zero.
function envelopeOf(xs, values, view, most) {
  const begin = lowerBound(xs, view.low);
  const end = lowerBound(xs, view.high + 1e-9 * Math.abs(view.high));
  const count = Math.max(1, Math.min(most, end - begin));
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

function extent(lists, positive = false) {
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
