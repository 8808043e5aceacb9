"use strict";
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const narrow = window.matchMedia("(max-width: 760px)");
function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}
function themed(layout) {
  const axis = {gridcolor: colour("--grid"), linecolor: colour("--rule"), zeroline: false};
  const axes = {};
  for (const name of new Set(["xaxis", "yaxis", ...Object.keys(layout)])) {
    if (/^xaxis\d*$/.test(name)) axes[name] = Object.assign({}, axis, layout[name]);
    if (/^yaxis\d*$/.test(name)) {
      axes[name] = Object.assign({automargin: true}, axis, layout[name]);
    }
  }
  return Object.assign({hovermode: "x unified", height: narrow.matches ? 300 : 340}, layout, {
    autosize: true,
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: {color: colour("--ink"), family: "system-ui, sans-serif", size: narrow.matches ? 11 : 12},
    hoverlabel: {bgcolor: colour("--card"), bordercolor: colour("--rule"),
                 font: {color: colour("--ink")}},
    margin: {l: 8, r: 8, t: 8, b: 48},
    legend: {orientation: "h", yanchor: "bottom", y: 1.02, x: 0},
    showlegend: true}, axes);
}
function draw(id, figure) {
  const place = document.getElementById(id);
  if (!place || !figure) return;
  if (figure.layout.height) place.style.height = figure.layout.height + "px";
  const config = {responsive: true, displaylogo: false, displayModeBar: false};
  Plotly.react(place, figure.data, themed(figure.layout), config);
}
const figures = JSON.parse(document.getElementById("figures").textContent);
const lists = document.querySelectorAll("select[data-chart]");
function chosen(list) {
  draw(list.dataset.chart, figures.choices[list.dataset.chart][list.selectedIndex]);
}
function drawAll() {
  for (const [id, figure] of Object.entries(figures.charts)) draw(id, figure);
  lists.forEach(chosen);
}
drawAll();
dark.addEventListener("change", drawAll);
narrow.addEventListener("change", drawAll);
lists.forEach((list) => list.addEventListener("change", () => chosen(list)));
