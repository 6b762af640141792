// Draw everything, and draw it again when the colour scheme or the width of the page changes.
resetView();
showTimes();
redraw();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
let width = innerWidth;
addEventListener("resize", () => {
  if (innerWidth === width) return; // only the height changed, because a phone hides its address bar
  width = innerWidth;
  redraw();
});
for (const details of document.querySelectorAll("details")) details.addEventListener("toggle", () => hideReadout());
document.documentElement.dataset.ready = "true";
