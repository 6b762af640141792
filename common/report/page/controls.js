// Controls above the plots: runs, reference, axes, smoothing and zoom.
const byId = (id) => document.getElementById(id);
const SMOOTHING_SHARES = [0.01, 0.03, 0.1]; // window of the running mean, as a share of the longest run

function redraw() {
  for (const plot of plots) drawPlot(plot);
  byId("reset").disabled = !isZoomed();
  byId("out").disabled = !isZoomed();
  for (const id of ["left", "right"]) byId(id).disabled = !isZoomed();
  readout.hidden = true;
}

// Show or hide a run with everything that belongs to it, such as its bars and rows.
function showRun(index, shown) {
  view.shown[index] = shown;
  for (const item of document.querySelectorAll(`[data-run="${index}"]`)) {
    if (item.matches(".chip")) item.setAttribute("aria-pressed", shown);
    else item.hidden = !shown;
  }
}

// Change which runs are shown, and keep the zoom.
function changeRuns(change) {
  const showsAll = !isZoomed();
  change();
  const { low, high } = view;
  resetView();
  if (!showsAll) zoomTo(low, high);
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

// Apply the value of a group of radio buttons when the reader chooses another one.
function onChoice(name, apply) {
  for (const radio of document.querySelectorAll(`input[name="${name}"]`)) {
    radio.addEventListener("change", () => { apply(radio.value); redraw(); });
  }
}
onChoice("axis", (value) => { view.axis = value; resetView(); });
onChoice("scale", (value) => { view.log = value === "log"; });

const longest = Math.max(...RUNS.map((run) => run.steps), 1);
for (const share of SMOOTHING_SHARES) {
  const steps = Math.max(3, 2 * Math.round((share * longest) / 2) + 1);
  if (steps < longest && ![...byId("smoothing").options].some(({ value }) => Number(value) === steps)) {
    byId("smoothing").append(new Option(`mean of ${formatCount(steps)} steps`, steps));
  }
}
byId("smoothing").addEventListener("change", (event) => {
  view.window = Number(event.target.value);
  redraw();
});

// The new visible part for each button, as shares of the present part.
const ZOOMS = { in: [0.25, 0.75], out: [-0.5, 1.5], left: [-0.5, 0.5], right: [0.5, 1.5] };
for (const [id, [from, to]] of Object.entries(ZOOMS)) {
  byId(id).addEventListener("click", () => {
    const width = view.high - view.low;
    zoomTo(view.low + from * width, view.low + to * width);
    redraw();
  });
}
byId("reset").addEventListener("click", () => { resetView(); redraw(); });

// Write the sentences under the title of a plot, and its description for screen readers.
function describePlot(plot) {
  const sentences = [plot.caption.dataset.text];
  const reference = RUNS[view.reference].label;
  if (plot.kind === "difference") {
    sentences[0] = sentences[0].replace("the reference", () => reference);
    for (const { run, pair } of plot.layers) {
      if (plot.metric === "loss" && pair.identical) sentences.push(`${run.label}: identical at ${formatCount(pair.identical)} of ${formatCount(pair.common)} steps.`);
    }
    const withoutSteps = getVisibleRuns().filter((run) => run.index !== view.reference && !plot.layers.some((layer) => layer.run === run));
    if (withoutSteps.length && withoutSteps.length < 4) sentences.push(`No common steps: ${withoutSteps.map(({ label }) => label).join(", ")}.`);
    else if (withoutSteps.length) sentences.push(`No common steps: ${withoutSteps.length} runs.`);
  } else if (isSmoothed(plot)) {
    sentences.push(`Smoothed: mean of ${formatCount(view.window)} steps, centred; the raw curve is faint.`);
  } else if (RUNS.some((run) => run.first) && plot.kind === "curve") {
    sentences.push("A band spans the smallest and the largest value of many steps; the line is the last one.");
  }
  plot.caption.textContent = sentences.slice(0, 5).join(" ") + (sentences.length > 5 ? ` And ${sentences.length - 5} more.` : "");
  plot.place.setAttribute("aria-label", `${plot.figure.querySelector("h3").textContent}. ${plot.caption.textContent} Arrow keys read values, plus and minus zoom, 0 shows everything.`);
  plot.figure.classList.toggle("empty", !plot.layers.length);
}
