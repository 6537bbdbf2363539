"use strict";
// Draws a report from the data in the page. Everything that somebody chose is put in as text.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const page = document.getElementById("page");

  function add(parent, kind, text) {
    const made = document.createElement(kind);
    if (text !== undefined) made.textContent = text;
    parent.append(made);
    return made;
  }

  function addTable(columns, rows) {
    const box = add(page, "div");
    box.className = "scroll";
    const table = add(box, "table");
    if (columns) {
      const head = add(add(table, "thead"), "tr");
      for (const name of columns) add(head, "th", name).scope = "col";
    }
    const body = add(table, "tbody");
    for (const row of rows) {
      const line = add(body, "tr");
      row.forEach((cell, at) => { add(line, columns || at ? "td" : "th", cell); });
    }
  }

  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const show = (value) => (value === null || value === undefined ? "-" : Number(value.toPrecision(6)).toString());
  let plots = [];

  function draw(holders) {
    for (const plot of plots) plot.destroy();
    plots = holders.map(([holder, curve]) => {
      const axis = { stroke: color("--quiet"), grid: { stroke: color("--line") }, ticks: { stroke: color("--line") } };
      const points = curve.values.length < 60;
      return new uPlot({
        width: holder.clientWidth, height: 220,
        scales: { x: { time: false } },
        axes: [axis, { ...axis, size: 64, values: (_, ticks) => ticks.map(show) }],
        series: [
          { label: data.step, value: (_, value) => show(value) },
          { label: "value", stroke: color("--curve"), width: 1.5, points: { show: points }, value: (_, value) => show(value) },
        ],
      }, [curve.steps, curve.values], holder);
    });
  }

  add(page, "h1", data.title);
  if (data.facts.length) addTable(null, data.facts);
  const holders = [];
  if (data.curves.length) {
    add(page, "h2", "Curves");
    const grid = add(page, "div");
    grid.className = "curves";
    for (const curve of data.curves) {
      const figure = add(grid, "figure");
      add(figure, "figcaption", curve.name);
      holders.push([add(figure, "div"), curve]);
      const known = curve.values.filter((value) => value !== null);
      const least = known.reduce((one, other) => Math.min(one, other), Infinity);
      const most = known.reduce((one, other) => Math.max(one, other), -Infinity);
      const text = known.length
        ? `${curve.count} points, from ${show(least)} to ${show(most)}, the last ${show(known[known.length - 1])}`
        : "no number";
      add(figure, "p", text).className = "quiet";
    }
  }
  for (const table of data.tables) {
    add(page, "h2", table.heading);
    addTable(table.columns, table.rows);
  }
  add(page, "p", `Written by Hocket ${data.version}.`).className = "quiet";
  draw(holders);
  let waiting = 0;
  addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(() => draw(holders), 100); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw(holders));
})();
