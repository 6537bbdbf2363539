"use strict";
// Draws a report from the data in the page. Users' texts are inserted as text, never as HTML.
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
  function show(value) {
    if (value === null || value === undefined) return "-";
    if (Number.isSafeInteger(value)) return String(value);
    const size = Math.abs(value);
    return size >= 1e6 && size < 1e15 ? String(Number(value.toFixed(3))) : String(Number(value.toPrecision(6)));
  }

  // A mark of an axis, with enough digits to differ from the next one.
  function tick(value, step) {
    const size = Math.abs(value);
    if (value !== 0 && (size >= 1e9 || step < 1e-6)) {
      return value.toExponential(Math.max(0, Math.min(12, Math.ceil(Math.log10(size / step) - 1e-9))));
    }
    return value.toFixed(Math.max(0, Math.min(12, Math.ceil(-Math.log10(step) - 1e-9))));
  }

  // A label has the same color in all figures.
  const places = new Map();
  for (const curve of data.curves) {
    for (const label of curve.labels) if (!places.has(label)) places.set(label, places.size);
  }
  let plots = [];

  function draw(holders) {
    for (const plot of plots) plot.destroy();
    plots = holders.map(([holder, curve]) => {
      const axis = { stroke: color("--quiet"), grid: { stroke: color("--line") }, ticks: { stroke: color("--line") } };
      const points = curve.steps.length < 60;
      const hues = color("--lines").split(" ");
      return new uPlot({
        width: holder.clientWidth, height: 220,
        scales: { x: { time: false } },
        axes: [axis, {
          ...axis,
          size: (_, shown) => Math.max(44, 18 + 6.5 * Math.max(0, ...(shown ?? []).map((one) => one.length))),
          values: (_, ticks, _axis, _space, step) => ticks.map((one) => tick(one, step)),
        }],
        series: [
          { label: data.step, value: (_, value) => show(value) },
          ...curve.labels.map((label) => ({
            label, stroke: hues[places.get(label) % hues.length], width: 1.5, spanGaps: true, points: { show: points }, value: (_, value) => show(value),
          })),
        ],
      }, [curve.steps, ...curve.lines], holder);
    });
  }

  add(page, "h1", data.title);
  if (data.facts.length) addTable(null, data.facts);
  for (const remark of data.remarks) add(page, "p", remark);
  for (const shares of data.shares) {
    add(page, "h2", shares.heading);
    const legend = add(page, "p");
    legend.className = "quiet";
    shares.parts.forEach((part, at) => {
      add(legend, "i").className = `swatch part${at}`;
      legend.append(`${part}  `);
    });
    const box = add(page, "div");
    box.className = "scroll";
    const table = add(box, "table");
    const head = add(add(table, "thead"), "tr");
    for (const name of ["", "", ...shares.parts]) add(head, "th", name).scope = "col";
    const body = add(table, "tbody");
    for (const row of shares.rows) {
      const line = add(body, "tr");
      add(line, "th", row.label).scope = "row";
      const cell = add(line, "td");
      cell.className = "bar";
      const bar = add(cell, "div");
      bar.className = "stacked";
      row.percent.forEach((percent, at) => {
        const part = add(bar, "i");
        part.className = `part${at}`;
        part.style.width = `${percent}%`;
      });
      for (const percent of row.percent) add(line, "td", `${Math.round(percent)} %`);
    }
  }
  const holders = [];
  if (data.curves.length) {
    add(page, "h2", "Curves");
    const grid = add(page, "div");
    grid.className = "curves";
    for (const curve of data.curves) {
      const figure = add(grid, "figure");
      add(figure, "figcaption", curve.name);
      holders.push([add(figure, "div"), curve]);
      const first = Math.max(0, curve.lines.findIndex((line) => line.some((value) => value !== null)));
      const known = curve.lines[first].filter((value) => value !== null);
      const least = known.reduce((one, other) => Math.min(one, other), Infinity);
      const most = known.reduce((one, other) => Math.max(one, other), -Infinity);
      const text = known.length
        ? `${first ? `${curve.labels[first]}: ` : ""}${curve.count} ${curve.count === 1 ? "value" : "values"}, from ${show(least)} to ${show(most)}, `
          + `the last ${curve.last ?? show(known[known.length - 1])}`
        : curve.last ? `no finite number, the last ${curve.last}` : "no number";
      // The sentence is about the first line with values; the legend names the others.
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
