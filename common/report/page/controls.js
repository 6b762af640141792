// The bar above the plots: runs, reference, axes, smoothing and zoom.
const byId = (id) => document.getElementById(id);
const WINDOWS = [0.01, 0.03, 0.1]; // shares of the longest run

function redraw() {
  for (const plot of plots) draw(plot);
  byId("reset").disabled = !zoomed();
  byId("out").disabled = !zoomed();
  for (const id of ["left", "right"]) byId(id).disabled = !zoomed();
  readout.hidden = true;
}

// Everything that belongs to a run, such as its bars and rows, is shown or hidden with it.
function showRun(index, shown) {
  view.shown[index] = shown;
  for (const each of document.querySelectorAll(`[data-run="${index}"]`)) {
    if (each.matches(".chip")) each.setAttribute("aria-pressed", shown);
    else each.hidden = !shown;
  }
}

function changeRuns(change) {
  const whole = !zoomed();
  change();
  const { low, high } = view;
  resetView();
  if (!whole) zoomTo(low, high);
  showTimes();
  redraw();
}

for (const chip of document.querySelectorAll(".chip")) {
  const index = Number(chip.dataset.run);
  chip.addEventListener("click", (event) => changeRuns(() => {
    if (event.shiftKey) RUNS.forEach((run) => showRun(run.index, run.index === index));
    else showRun(index, !view.shown[index]);
  }));
}
byId("all").addEventListener("click", () => changeRuns(() => RUNS.forEach((run) => showRun(run.index, true))));

byId("reference").addEventListener("change", (event) => {
  view.reference = Number(event.target.value);
  redraw();
});

function chosen(name, apply) {
  for (const radio of document.querySelectorAll(`input[name="${name}"]`)) {
    radio.addEventListener("change", () => { apply(radio.value); redraw(); });
  }
}
chosen("axis", (value) => { view.axis = value; resetView(); });
chosen("scale", (value) => { view.log = value === "log"; });

const longest = Math.max(...RUNS.map((run) => run.steps), 1);
for (const share of WINDOWS) {
  const steps = Math.max(3, 2 * Math.round((share * longest) / 2) + 1);
  if (steps < longest && ![...byId("smoothing").options].some(({ value }) => Number(value) === steps)) {
    byId("smoothing").append(new Option(`mean of ${counted(steps)} steps`, steps));
  }
}
byId("smoothing").addEventListener("change", (event) => {
  view.window = Number(event.target.value);
  redraw();
});

const ZOOMS = { in: [0.25, 0.75], out: [-0.5, 1.5], left: [-0.5, 0.5], right: [0.5, 1.5] };
for (const [id, [from, to]] of Object.entries(ZOOMS)) {
  byId(id).addEventListener("click", () => {
    const width = view.high - view.low;
    zoomTo(view.low + from * width, view.low + to * width);
    redraw();
  });
}
byId("reset").addEventListener("click", () => { resetView(); redraw(); });

// The sentences under the title of a plot, and what a screen reader says of it.
function describe(plot) {
  const sentences = [plot.caption.dataset.text];
  const reference = RUNS[view.reference].label;
  if (plot.kind === "difference") {
    sentences[0] = sentences[0].replace("the reference", () => reference);
    for (const { run, pair } of plot.layers) {
      if (plot.metric === "loss" && pair.identical) sentences.push(`${run.label}: identical at ${counted(pair.identical)} of ${counted(pair.common)} steps.`);
    }
    const without = visibleRuns().filter((run) => run.index !== view.reference && !plot.layers.some((layer) => layer.run === run));
    if (without.length && without.length < 4) sentences.push(`No common steps: ${without.map(({ label }) => label).join(", ")}.`);
    else if (without.length) sentences.push(`No common steps: ${without.length} runs.`);
  } else if (smooths(plot)) {
    sentences.push(`Smoothed: mean of ${counted(view.window)} steps, centred; the raw curve is faint.`);
  } else if (RUNS.some((run) => run.first) && plot.kind === "curve") {
    sentences.push("A band spans the least and the largest value of many steps; the line is the last one.");
  }
  plot.caption.textContent = sentences.slice(0, 5).join(" ") + (sentences.length > 5 ? ` And ${sentences.length - 5} more.` : "");
  plot.place.setAttribute("aria-label", `${plot.figure.querySelector("h3").textContent}. ${plot.caption.textContent} Arrow keys read values, plus and minus zoom, 0 shows all.`);
  plot.figure.classList.toggle("empty", !plot.layers.length);
}
