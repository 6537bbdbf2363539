// Draws the run that the kernel sends. All texts become text nodes, never HTML.

const SPACE = "http://www.w3.org/2000/svg";
const COLORS = ["#2f7fd8", "#d86a1f", "#3d9a50", "#a33fa0", "#9a7d00", "#169c9c", "#c3362c", "#6b7685"];
const WIDTH = 360;
const HEIGHT = 150;
const MARGIN = 6;
const MOST_RANKS = 8;

function make(name, given, ...inside) {
  const made = name === "svg" || name === "polyline" || name === "text"
    ? document.createElementNS(SPACE, name) : document.createElement(name);
  for (const [key, value] of Object.entries(given ?? {})) made.setAttribute(key, value);
  made.append(...inside);
  return made;
}

function figure(value) {
  if (value === null || value === undefined) return "-";
  if (typeof value !== "number" || Number.isSafeInteger(value)) return String(value);
  const size = Math.abs(value);
  return size >= 1e6 && size < 1e15 ? String(Number(value.toFixed(3))) : String(Number(value.toPrecision(6)));
}

function drawMetric(name, rows, columns, last) {
  const known = columns.flat().filter((value) => value !== null);
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const right = Math.max(1, rows.at(-1) ?? 1);
  const x = (row) => MARGIN + (row / right) * (WIDTH - 2 * MARGIN);
  const y = (value) => HEIGHT - MARGIN - (high > low ? (value - low) / (high - low) : 0.5) * (HEIGHT - 2 * MARGIN);
  const picture = make("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${name}: last ${figure(last)}` });
  columns.slice(0, MOST_RANKS).forEach((values, rank) => {
    const points = values.map((value, at) => [rows[at], value]).filter(([, value]) => value !== null);
    picture.append(make("polyline", {
      fill: "none", stroke: COLORS[rank % COLORS.length], "stroke-width": 1.5,
      points: points.map(([row, value]) => `${x(row).toFixed(1)},${y(value).toFixed(1)}`).join(" "),
    }));
  });
  if (known.length) {
    picture.append(make("text", { x: MARGIN + 2, y: 16 }, figure(high)));
    picture.append(make("text", { x: MARGIN + 2, y: HEIGHT - 10 }, figure(low)));
  }
  return make("div", {}, make("h4", {}, `${name}: ${figure(last)}`), picture);
}

function draw(to, run) {
  to.replaceChildren();
  if (!run.path) {
    to.append(make("p", {}, "No trainer has run yet in this session."));
    return;
  }
  const isBad = run.state === "failed" || run.state === "interrupted";
  to.append(make("p", isBad ? { class: "bad" } : {}, `${run.name}: ${run.state}, ${run.size} ranks, ${run.rows} reports.`));
  for (const failure of run.failures) {
    for (const [rank, text] of Object.entries(failure.errors)) to.append(make("p", { class: "bad" }, `Rank ${rank}: ${text}`));
  }
  for (const text of run.advice) to.append(make("p", {}, text));
  const plots = make("div", { class: "plots" });
  for (const [name, columns] of Object.entries(run.curves)) plots.append(drawMetric(name, run.rows_drawn, columns, run.lasts[name]));
  to.append(plots);
}

export default {
  render({ model, el }) {
    const room = make("div", { class: "hocket-curves" });
    const again = () => draw(room, model.get("run"));
    model.on("change:run", again);
    again();
    el.append(room);
    return () => model.off("change:run", again);
  },
};
