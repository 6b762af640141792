// Draw everything, and again where the reader's setting or the width of the page changes.
resetView();
showTimes();
redraw();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
let width = innerWidth;
addEventListener("resize", () => {
  if (innerWidth === width) return; // a phone hides its address bar
  width = innerWidth;
  redraw();
});
for (const details of document.querySelectorAll("details")) details.addEventListener("toggle", () => hide());
document.documentElement.dataset.ready = "true";
