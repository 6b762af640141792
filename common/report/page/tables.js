// Tables: copies as CSV, and the time that each run takes to reach a chosen loss.

function buildCsv(table) {
  const cell = (node) => {
    const text = node.textContent.replace(/\s+/g, " ").trim();
    const safe = /^[=+@\t]/.test(text) ? `'${text}` : text; // so that a spreadsheet does not read it as a formula
    return /[",\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  const rows = [...table.rows].filter((row) => !row.hidden && !row.matches(".explanation"));
  return rows.map((row) => [...row.cells].map(cell).join(",")).join("\n") + "\n";
}

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch { // an older browser, or one that gives files no access to the clipboard
    const area = createElement("textarea", { value: text });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}

for (const button of document.querySelectorAll(".copy")) {
  button.addEventListener("click", async () => {
    await copyText(buildCsv(button.closest("section").querySelector("table")));
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy as CSV"; }, 1500);
  });
}

// Return the first evaluation of a run whose loss is no higher than the chosen one.
function findFirstEvaluation(run, loss) {
  const index = run.evals.loss.findIndex((value) => value <= loss);
  return index < 0 ? undefined : { step: run.evals.step[index], examples: run.evals.examples[index], seconds: run.evals.seconds[index] };
}

const target = byId("target");

// Fill the table of the time to a loss. At first, choose the lowest loss that every run reaches.
function showTimes() {
  const section = byId("times");
  const evaluated = RUNS.filter((run) => run.evals.loss.length);
  section.hidden = !evaluated.length;
  if (!evaluated.length) return;
  if (target.value === "") {
    const lowest = evaluated.map((run) => Math.min(...run.evals.loss.filter(Number.isFinite))).filter(Number.isFinite);
    const common = Math.max(...lowest); // every run reaches this loss
    target.value = lowest.length ? String(Math.ceil(common * 1e4) / 1e4) : "";
  }
  const rows = evaluated.filter((run) => view.shown[run.index]).map((run) => ({ run, evaluation: findFirstEvaluation(run, Number(target.value)) }));
  const longestTime = Math.max(...rows.map(({ evaluation }) => evaluation?.seconds || 0));
  byId("times-rows").replaceChildren(...rows.map(({ run, evaluation }) => {
    const swatch = createElement("i", { className: "dot" });
    swatch.style.background = `var(--c${run.index % 8})`;
    const bar = createElement("span", { className: "track" }, createElement("i"));
    bar.firstChild.style.width = `${evaluation && longestTime ? (100 * evaluation.seconds) / longestTime : 0}%`;
    bar.firstChild.style.background = `var(--c${run.index % 8})`;
    const cells = evaluation ? [`${formatNumber(evaluation.seconds, 4)} s`, formatCount(evaluation.examples), formatCount(evaluation.step)] : ["not reached", "-", "-"];
    return createElement("tr", {}, createElement("th", {}, swatch, run.label), ...cells.map((textContent) => createElement("td", { className: "number", textContent })), createElement("td", { className: "wide-bar" }, bar));
  }));
}

target.addEventListener("input", () => { if (target.value !== "") showTimes(); });
