"use strict";
// Each chart is drawn from the table beside it, so that the two cannot differ, and the page says everything without a script.
(() => {
  const style = () => getComputedStyle(document.documentElement);
  const colour = (name) => style().getPropertyValue("--" + name).trim();
  // Oldest first, where the table has the newest on top; a first load is so large that nothing else could be seen beside it.
  const rows = (table, line) => {
    const all = [...table.tBodies[0].rows];
    const ordered = "newestFirst" in table.dataset ? all.reverse() : all;
    return line || ordered.length < 2 ? ordered : ordered.filter((row) => !("first" in row.dataset));
  };
  const short = (text, room) => (text.length > room ? text.slice(0, room - 1) + "\u2026" : text);

  const data = (canvas, table) => {
    const heads = [...table.tHead.rows[0].cells].map((cell) => cell.textContent.toLowerCase());
    const line = "line" in canvas.dataset;
    const shown = rows(table, line);
    const head = (name) => name.replace("_", " ");
    const values = (name) => shown.map((row) => Number(row.cells[heads.indexOf(head(name))].dataset.value));
    const series = canvas.dataset.series.split(" ").map((name) => [name, values(name)]);
    return {
      labels: shown.map((row) => row.dataset.label),
      datasets: series.filter(([, found]) => line || found.some(Boolean)).map(([name, found]) => ({
        label: head(name),
        data: found,
        backgroundColor: colour(name),
        borderColor: colour(name),
        borderWidth: line ? 2 : 0,
        pointRadius: line && shown.length > 30 ? 0 : 2,
        maxBarThickness: 28,
      })),
    };
  };

  const options = (canvas) => {
    const sideways = "sideways" in canvas.dataset;
    const line = "line" in canvas.dataset;
    const ticks = { color: colour("quiet"), maxRotation: 0, autoSkipPadding: 16, precision: 0 };
    const room = Math.floor(canvas.parentElement.clientWidth / 16);
    // A year on each tick says nothing: the tooltip has it.
    const tick = (label) => (sideways ? short(label, room) : label.replace(/^\d{4}-/, ""));
    const names = { ...ticks, callback(value) { return tick(this.getLabelForValue(value)); } };
    const axis = { stacked: !line, grid: { color: colour("grid") }, border: { display: false } };
    const counted = { ...axis, ticks, beginAtZero: !line, grace: line ? "10%" : 0 };
    const named = { ...axis, ticks: { ...names, autoSkip: !sideways }, grid: { display: false } };
    return {
      animation: false,
      locale: "en-US",
      maintainAspectRatio: false,
      indexAxis: sideways ? "y" : "x",
      interaction: { mode: "index", intersect: false, axis: sideways ? "y" : "x" },
      scales: sideways ? { x: counted, y: named } : { x: named, y: counted },
      plugins: { legend: { display: !sideways, position: "bottom", labels: { color: colour("text"), boxWidth: 10, boxHeight: 10, padding: 12 } } },
    };
  };

  const charts = [];
  const draw = () => {
    while (charts.length) charts.pop().destroy();
    Chart.defaults.font.family = getComputedStyle(document.body).fontFamily;
    Chart.defaults.font.size = 12;
    for (const canvas of document.querySelectorAll("canvas[data-table]")) {
      const table = document.getElementById(canvas.dataset.table);
      const type = "line" in canvas.dataset ? "line" : "bar";
      charts.push(new Chart(canvas, { type, data: data(canvas, table), options: options(canvas) }));
    }
  };
  draw();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);

  const find = document.getElementById("find");
  const parts = [...document.querySelectorAll("[data-find]")];
  const search = () => {
    const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const part of parts) {
      const text = part.dataset.find.toLowerCase();
      part.hidden = !words.every((word) => text.includes(word));
      shown += part.hidden ? 0 : 1;
    }
    for (const section of document.querySelectorAll("main > section")) {
      const inside = [...section.querySelectorAll("[data-find]")];
      section.hidden = words.length > 0 && inside.every((part) => part.hidden);
    }
    document.getElementById("nothing").hidden = shown > 0 || words.length === 0;
    document.getElementById("found").textContent = words.length ? `${shown} of ${parts.length} parts shown` : "";
  };
  find.addEventListener("input", search);
  document.addEventListener("keydown", (event) => {
    const typing = event.target instanceof HTMLInputElement;
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      find.focus();
    }
  });
})();
