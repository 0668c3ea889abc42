"use strict";
const read = (id) => JSON.parse(document.getElementById(id).textContent);
const root = document.documentElement;
const wanted = matchMedia("(prefers-color-scheme: dark)");
const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : wanted.matches);
const plots = () => document.querySelectorAll(".plot");
const config = {
  responsive: true, displaylogo: false,
  modeBarButtons: [["zoom2d", "pan2d"], ["zoomIn2d", "zoomOut2d", "resetScale2d"], ["toImage"]],
};

async function inflated(id) {
  const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (c) => c.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

async function draw() {
  const template = read("looks")[dark() ? "dark" : "light"];
  for (const plot of plots()) {
    const figure = read(plot.dataset.figure);
    await Plotly.react(plot, figure.data, { ...figure.layout, template, uirevision: "kept" }, config);
  }
  root.dataset.drawn = "yes";
}

function move(event) {
  const plot = event.currentTarget;
  const [a, b] = plot.layout.xaxis.range;
  const w = b - a;
  const zoomed = {
    "+": [a + w / 4, b - w / 4], "=": [a + w / 4, b - w / 4], "-": [a - w / 2, b + w / 2],
    ArrowLeft: [a - w / 4, b - w / 4], ArrowRight: [a + w / 4, b + w / 4],
    0: read(plot.dataset.figure).layout.xaxis.range,
  }[event.key];
  if (!zoomed || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  Plotly.relayout(plot, { "xaxis.range": zoomed });
}

async function start() {
  const button = document.getElementById("theme");
  const name = () => { button.textContent = dark() ? "Light" : "Dark"; };
  name();
  button.hidden = false;
  button.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; name(); draw(); });
  wanted.addEventListener("change", () => { name(); draw(); });
  (0, eval)(await inflated("plotly"));
  await draw();
  for (const plot of plots()) if (plot.tabIndex === 0) plot.addEventListener("keydown", move);
}

start().catch((error) => {
  for (const plot of plots()) plot.textContent = `This figure cannot be drawn here (${error.message}); the tables hold its numbers.`;
});
