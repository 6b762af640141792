// Tables: copied as CSV, and the one that follows from a chosen loss.

function csvOf(table) {
  const cell = (node) => {
    const text = node.textContent.replace(/\s+/g, " ").trim();
    const safe = /^[=+@\t]/.test(text) ? `'${text}` : text; // a spreadsheet is not to take it for a formula
    return /[",\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  const rows = [...table.rows].filter((row) => !row.hidden && !row.matches(".explanation"));
  return rows.map((row) => [...row.cells].map(cell).join(",")).join("\n") + "\n";
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch { // an older browser, or one that does not trust files
    const area = element("textarea", { value: text });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}

for (const button of document.querySelectorAll(".copy")) {
  button.addEventListener("click", async () => {
    await copy(csvOf(button.closest("section").querySelector("table")));
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy as CSV"; }, 1500);
  });
}

// The first evaluation of a run whose loss is no higher than the chosen one.
function reached(run, loss) {
  const at = run.evals.loss.findIndex((value) => value <= loss);
  return at < 0 ? undefined : { step: run.evals.step[at], examples: run.evals.examples[at], seconds: run.evals.seconds[at] };
}

const target = byId("target");

function showTimes() {
  const section = byId("times");
  const evaluated = RUNS.filter((run) => run.evals.loss.length);
  section.hidden = !evaluated.length;
  if (!evaluated.length) return;
  if (target.value === "") {
    const best = evaluated.map((run) => Math.min(...run.evals.loss.filter(Number.isFinite))).filter(Number.isFinite);
    const all = Math.max(...best); // every run reaches it
    target.value = best.length ? String(Math.ceil(all * 1e4) / 1e4) : "";
  }
  const rows = evaluated.filter((run) => view.shown[run.index]).map((run) => ({ run, found: reached(run, Number(target.value)) }));
  const longestTime = Math.max(...rows.map(({ found }) => found?.seconds || 0));
  byId("times-rows").replaceChildren(...rows.map(({ run, found }) => {
    const swatch = element("i", { className: "dot" });
    swatch.style.background = `var(--c${run.index % 8})`;
    const bar = element("span", { className: "track" }, element("i"));
    bar.firstChild.style.width = `${found && longestTime ? (100 * found.seconds) / longestTime : 0}%`;
    bar.firstChild.style.background = `var(--c${run.index % 8})`;
    const cells = found ? [`${measured(found.seconds, 4)} s`, counted(found.examples), counted(found.step)] : ["not reached", "-", "-"];
    return element("tr", {}, element("th", {}, swatch, run.label), ...cells.map((textContent) => element("td", { className: "number", textContent })), element("td", { className: "wide-bar" }, bar));
  }));
}

target.addEventListener("input", () => { if (target.value !== "") showTimes(); });
