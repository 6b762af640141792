// Updates of a served page: load a newer page when there is one, and restore what the reader has chosen.
const VERSION = document.documentElement.dataset.version;
const STORAGE_KEY = `lockstep ${location.pathname}`;
const POLL_SECONDS = 1;

const listDetails = () => [...document.querySelectorAll("details")].map((section) => [section.querySelector("summary").textContent, section]);

let hasTypedTarget = false;
byId("target").addEventListener("input", () => { hasTypedTarget = true; });

// Return a selector that finds the element with the keyboard focus in the next page.
function describeFocus() {
  const element = document.activeElement;
  if (element.id) return `#${element.id}`;
  if (element.matches(".plot")) return `[data-plot="${element.closest("figure").dataset.plot}"] .plot`;
  if (element.matches("input")) return `input[name="${element.name}"][value="${element.value}"]`;
  return element.matches(".chip") ? `.chip[data-run="${element.dataset.run}"]` : null;
}

// Store what the reader has chosen.
function storeChoices() {
  sessionStorage.setItem(STORAGE_KEY, JSON.stringify({
    hidden: RUNS.filter((run) => !view.shown[run.index]).map((run) => run.label),
    reference: RUNS[view.reference].label,
    axis: view.axis,
    log: view.log,
    smoothing: byId("smoothing").selectedIndex,
    zoom: isZoomed() ? [view.low, view.high] : null,
    target: hasTypedTarget ? byId("target").value : null,
    open: listDetails().filter(([, section]) => section.open).map(([title]) => title),
    focus: describeFocus(),
  }));
}

// Choose again what `choices` contains.
function restoreChoices(choices) {
  for (const run of RUNS) if (choices.hidden.includes(run.label)) showRun(run.index, false);
  const reference = RUNS.find((run) => run.label === choices.reference);
  if (reference) byId("reference").value = view.reference = reference.index;
  if (DATA.axes.includes(choices.axis)) view.axis = choices.axis;
  view.log = choices.log;
  document.querySelector(`input[name="axis"][value="${view.axis}"]`).checked = true;
  document.querySelector(`input[name="scale"][value="${view.log ? "log" : "linear"}"]`).checked = true;
  byId("smoothing").selectedIndex = Math.min(choices.smoothing, byId("smoothing").options.length - 1);
  view.window = Number(byId("smoothing").value);
  resetView();
  if (choices.zoom) zoomTo(...choices.zoom);
  if (choices.target !== null) {
    byId("target").value = choices.target;
    hasTypedTarget = true;
  }
  for (const [title, section] of listDetails()) section.open = choices.open.includes(title);
  showTimes();
  redraw();
  if (choices.focus) document.querySelector(choices.focus)?.focus({ preventScroll: true });
}

let isPointerDown = false;
addEventListener("pointerdown", () => { isPointerDown = true; }, true);
for (const end of ["pointerup", "pointercancel"]) addEventListener(end, () => { isPointerDown = false; }, true);

// Check whether the reader is doing something that a new page would interrupt.
const isBusy = () => isPointerDown || !readout.hidden || document.activeElement === byId("target") || !getSelection().isCollapsed;

// Ask the server for its version, and load the page again if it has a newer one.
async function poll() {
  let status = "Follows the runs.";
  try {
    const answer = await fetch("version", { cache: "no-store" });
    if (answer.ok && (await answer.text()) !== VERSION) {
      if (!isBusy() && !document.hidden) {
        storeChoices();
        location.reload();
        return;
      }
      status = "Update pending; move the pointer off the plot to load it.";
    }
  } catch {
    status = "The command that serves this page has ended.";
  }
  byId("live").textContent = status;
  setTimeout(poll, 1000 * POLL_SECONDS);
}

const stored = sessionStorage.getItem(STORAGE_KEY);
if (stored) restoreChoices(JSON.parse(stored));
poll();
