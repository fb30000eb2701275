"use strict";
// Each chart is drawn from the table below it, so that the two cannot differ, and the page says everything without a script.
(() => {
  const style = () => getComputedStyle(document.documentElement);
  const colour = (name) => style().getPropertyValue("--" + name).trim();
  // Oldest first, where the table has the newest on top; a first load is so large that nothing else could be seen beside it.
  const rows = (table, line) => {
    const all = [...table.tBodies[0].rows];
    const ordered = "newestFirst" in table.dataset ? all.reverse() : all;
    return line || ordered.length < 2 ? ordered : ordered.filter((row) => !("first" in row.dataset));
  };
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
    const line = "line" in canvas.dataset;
    const ticks = { color: colour("quiet"), maxRotation: 0, autoSkipPadding: 16, precision: 0 };
    // A year on each tick says nothing: the tooltip has it.
    const named = { ...ticks, callback(value) { return this.getLabelForValue(value).replace(/^\d{4}-/, ""); } };
    const axis = { stacked: !line, border: { display: false } };
    return {
      animation: false,
      locale: "en-US",
      maintainAspectRatio: false,
      interaction: { mode: "index", intersect: false },
      scales: {
        x: { ...axis, ticks: named, grid: { display: false } },
        y: { ...axis, ticks, grid: { color: colour("grid") }, beginAtZero: !line, grace: line ? "10%" : 0 },
      },
      plugins: { legend: { position: "bottom", labels: { color: colour("text"), boxWidth: 10, boxHeight: 10, padding: 12 } } },
    };
  };

  // A chart that is not seen has no size: it is drawn when its panel opens.
  const draw = () => {
    Chart.defaults.font.family = getComputedStyle(document.body).fontFamily;
    Chart.defaults.font.size = 12;
    for (const canvas of document.querySelectorAll("canvas[data-table]")) {
      if (Chart.getChart(canvas) || canvas.closest("details:not([open])")) continue;
      const table = document.getElementById(canvas.dataset.table);
      const type = "line" in canvas.dataset ? "line" : "bar";
      new Chart(canvas, { type, data: data(canvas, table), options: options(canvas) });
    }
  };
  const again = () => {
    for (const canvas of document.querySelectorAll("canvas[data-table]")) Chart.getChart(canvas)?.destroy();
    draw();
  };
  draw();
  document.addEventListener("toggle", draw, true);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);

  // A link into a panel opens it.
  const open = (hash) => {
    const to = document.getElementById(hash.slice(1));
    if (to instanceof HTMLDetailsElement) to.open = true;
  };
  addEventListener("hashchange", () => open(location.hash));
  // The second click on a link changes no hash.
  document.addEventListener("click", ({ target }) => open(target.closest("a")?.hash ?? ""));
  open(location.hash);

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

  // On paper no panel can be opened, and a chart keeps the size and the colours in which it was drawn.
  let closed = [];
  const paper = (on) => {
    document.documentElement.classList.toggle("paper", on);
    again();
  };
  addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details:not([open])")];
    for (const panel of closed) panel.open = true;
    paper(true);
  });
  addEventListener("afterprint", () => {
    for (const panel of closed) panel.open = false;
    paper(false);
  });
})();
