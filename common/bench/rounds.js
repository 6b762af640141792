// Draw the speed of every contestant in each round, and draw it again when the width or the theme changes.
const SPEEDS = Object.values(JSON.parse(document.getElementById("data").textContent));
const place = document.getElementById("rounds");
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
let plot;

function draw() {
  plot?.destroy();
  const axis = { stroke: css("--soft"), grid: { stroke: css("--grid") }, ticks: { stroke: css("--grid") } };
  const series = SPEEDS.map((_, index) => ({ stroke: css(`--c${index % 8}`), width: 1.8, points: { size: 6, fill: css(`--c${index % 8}`) } }));
  const rounds = SPEEDS[0].map((_, index) => index + 1);
  const options = {
    width: place.clientWidth,
    height: place.clientHeight,
    legend: { show: false },
    scales: { x: { time: false }, y: { range: (_, low, high) => [0, high * 1.05] } },
    axes: [{ ...axis, label: "round", incrs: [1, 2, 5, 10, 20, 50] }, { ...axis, size: 64 }],
    series: [{}, ...series],
  };
  plot = new uPlot(options, [rounds, ...SPEEDS], place);
}

draw();
addEventListener("resize", draw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
