// Of a page that is served: follow runs that train. A newer page is loaded, and set as the reader had set this one.
const VERSION = document.documentElement.dataset.version;
const STORED = `lockstep ${location.pathname}`;
const ASK_SECONDS = 1;

const details = () => [...document.querySelectorAll("details")].map((each) => [each.querySelector("summary").textContent, each]);

let typed = false;
byId("target").addEventListener("input", () => { typed = true; });

// Where the keyboard is, as a selector that finds it in the next page.
function focused() {
  const at = document.activeElement;
  if (at.id) return `#${at.id}`;
  if (at.matches(".plot")) return `[data-plot="${at.closest("figure").dataset.plot}"] .plot`;
  if (at.matches("input")) return `input[name="${at.name}"][value="${at.value}"]`;
  return at.matches(".chip") ? `.chip[data-run="${at.dataset.run}"]` : null;
}

function remember() {
  sessionStorage.setItem(STORED, JSON.stringify({
    hidden: RUNS.filter((run) => !view.shown[run.index]).map((run) => run.label),
    reference: RUNS[view.reference].label,
    axis: view.axis,
    log: view.log,
    smoothing: byId("smoothing").selectedIndex,
    zoom: zoomed() ? [view.low, view.high] : null,
    target: typed ? byId("target").value : null,
    open: details().filter(([, each]) => each.open).map(([title]) => title),
    focus: focused(),
  }));
}

function restore(kept) {
  for (const run of RUNS) if (kept.hidden.includes(run.label)) showRun(run.index, false);
  const reference = RUNS.find((run) => run.label === kept.reference);
  if (reference) byId("reference").value = view.reference = reference.index;
  if (DATA.axes.includes(kept.axis)) view.axis = kept.axis;
  view.log = kept.log;
  document.querySelector(`input[name="axis"][value="${view.axis}"]`).checked = true;
  document.querySelector(`input[name="scale"][value="${view.log ? "log" : "linear"}"]`).checked = true;
  byId("smoothing").selectedIndex = Math.min(kept.smoothing, byId("smoothing").options.length - 1);
  view.window = Number(byId("smoothing").value);
  resetView();
  if (kept.zoom) zoomTo(...kept.zoom);
  if (kept.target !== null) {
    byId("target").value = kept.target;
    typed = true;
  }
  for (const [title, each] of details()) each.open = kept.open.includes(title);
  showTimes();
  redraw();
  if (kept.focus) document.querySelector(kept.focus)?.focus({ preventScroll: true });
}

let pressed = false;
addEventListener("pointerdown", () => { pressed = true; }, true);
for (const end of ["pointerup", "pointercancel"]) addEventListener(end, () => { pressed = false; }, true);

// Whether the reader is in the middle of something that a new page would end.
const reading = () => pressed || !readout.hidden || document.activeElement === byId("target") || !getSelection().isCollapsed;

async function follow() {
  let said = "Follows the runs.";
  try {
    const answer = await fetch("version", { cache: "no-store" });
    if (answer.ok && (await answer.text()) !== VERSION) {
      if (!reading() && !document.hidden) {
        remember();
        location.reload();
        return;
      }
      said = "There is news: it is shown when the pointer leaves the plot.";
    }
  } catch {
    said = "The command that serves this page has ended.";
  }
  byId("live").textContent = said;
  setTimeout(follow, 1000 * ASK_SECONDS);
}

const kept = sessionStorage.getItem(STORED);
if (kept) restore(JSON.parse(kept));
follow();
