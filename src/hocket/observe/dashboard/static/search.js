// Searches: their trials, the hyperparameters that affect a metric, and its curves.

import { html, useEffect, useState } from "/static/vendor/htm-preact.js";
import { ask, repeat } from "/static/source.js";
import { Bar, Figures, Table } from "/static/table.js";
import { count, duration, figure, many } from "/static/text.js";

const WIDTH = 900;
const HEIGHT = 260;
const MARGIN = 40;
const MOST_LINES = 300;

// Returns places from 0 to 1: of numbers by value (or by logarithm, if they span much), of other values by order.
function buildAxis(values) {
  const known = values.filter((value) => value !== null && value !== undefined);
  const isNumber = known.length > 0 && known.every((value) => typeof value === "number");
  if (!isNumber) {
    const order = [...new Set(known.map(String))].sort();
    return { place: (value) => (order.length > 1 ? order.indexOf(String(value)) / (order.length - 1) : 0.5), ends: [order[0], order.at(-1)] };
  }
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const isLog = low > 0 && high / low > 30;
  const scale = isLog ? Math.log : (value) => value;
  const span = scale(high) - scale(low);
  return { place: (value) => (span ? (scale(value) - scale(low)) / span : 0.5), ends: [low, high].map((end) => figure(Number(end.toPrecision(4)))) };
}

// From the best trial's colour to the worst one's.
const shade = (share) => `color-mix(in oklab, var(--accent) ${Math.round(100 * (1 - share))}%, var(--line))`;

function Parallel({ search, chosen, onChoose }) {
  const rows = search.trials.filter((one) => one.score !== null).slice(0, MOST_LINES);
  if (rows.length < 2 || !search.parameters.length) return null;
  const names = [...search.parameters, search.metric];
  const read = (row, name, at) => (at < search.parameters.length ? row.config[name] : row.metrics[search.metric]);
  const axes = names.map((name, at) => buildAxis(rows.map((row) => read(row, name, at))));
  const x = (at) => MARGIN + (at * (WIDTH - 2 * MARGIN)) / Math.max(1, names.length - 1);
  const y = (share) => HEIGHT - MARGIN - share * (HEIGHT - 2 * MARGIN);
  const ranked = rows.slice().sort((one, other) => one.score - other.score);
  const lines = ranked.map((row, rank) => [row, rank / Math.max(1, ranked.length - 1)]).reverse();
  return html`<h2>Configurations</h2>
    <p class="quiet">A line is a trial; the better, the stronger its colour. A click on one finds it in the table.
      ${search.trials.length > MOST_LINES ? ` The best ${MOST_LINES} of them.` : ""}</p>
    <div class="scroll"><svg id="parallel" class="plot wide" viewBox="0 0 ${WIDTH} ${HEIGHT}" role="img"
      aria-label="Trials as lines over their hyperparameters; the table below has the same figures">
      ${lines.map(([row, rank]) => html`<polyline key=${row.number} fill="none"
        stroke=${row.number === chosen ? "var(--bad)" : shade(rank)} stroke-width=${row.number === chosen ? 3 : 1.4}
        onClick=${() => onChoose(row.number)}
        points=${names.map((name, at) => `${x(at)},${y(axes[at].place(read(row, name, at)) || 0)}`).join(" ")} />`)}
      ${names.map((name, at) => html`<g key=${name}>
        <line x1=${x(at)} x2=${x(at)} y1=${y(0)} y2=${y(1)} stroke="var(--quiet)" />
        <text x=${x(at)} y=${y(1) - 22} text-anchor="middle" class="strong">${name.length > 18 ? `${name.slice(0, 17)}…` : name}</text>
        <text x=${x(at)} y=${y(1) - 7} text-anchor="middle">${axes[at].ends[1]}</text>
        <text x=${x(at)} y=${y(0) + 16} text-anchor="middle">${axes[at].ends[0]}</text></g>`)}
    </svg></div>`;
}

function Curves({ search, chosen }) {
  const lines = search.curves.filter((one) => one.points.some(([, value]) => value !== null));
  if (!lines.length) return null;
  const points = lines.flatMap((one) => one.points).filter(([, value]) => value !== null);
  const [right, low, high] = [Math.max(...points.map(([at]) => at)), Math.min(...points.map(([, value]) => value)),
    Math.max(...points.map(([, value]) => value))];
  const x = (at) => 2 * MARGIN + (right ? (at * (WIDTH - 3 * MARGIN)) / right : 0);
  const y = (value) => HEIGHT - MARGIN - (high > low ? (value - low) / (high - low) : 0.5) * (HEIGHT - 2 * MARGIN);
  return html`<h2>${search.metric} over reports</h2>
    <p class="quiet">Trials that run, and the best of the others.</p>
    <div class="scroll"><svg id="curves" class="plot wide" viewBox="0 0 ${WIDTH} ${HEIGHT}" role="img"
      aria-label="The metric over reports, a line a trial">
      <line x1=${x(0)} x2=${WIDTH - MARGIN} y1=${y(low)} y2=${y(low)} stroke="var(--quiet)" />
      <text x=${x(0) - 6} y=${y(high) + 5} text-anchor="end">${figure(high)}</text>
      <text x=${x(0) - 6} y=${y(low)} text-anchor="end">${figure(low)}</text>
      <text x=${WIDTH - MARGIN} y=${HEIGHT - MARGIN + 16} text-anchor="end">report ${right + 1}</text>
      ${lines.map((one, at) => html`<polyline key=${one.number} fill="none" stroke=${one.number === chosen ? "var(--bad)" : shade(at / lines.length)}
        stroke-width=${one.number === chosen ? 3 : 1.4}
        points=${one.points.filter(([, value]) => value !== null).map(([step, value]) => `${x(step)},${y(value)}`).join(" ")} />`)}
    </svg></div>`;
}

const ASSOCIATIONS = "The share of the metric's variation, by rank, that goes with each hyperparameter alone, over all "
  + "trials. 0: no more than by chance. get_importances() asks what the best trials share: the two may differ.";

function Associations({ search }) {
  return html`<h2>What goes with ${search.metric}</h2>
    <${Table} id="associations" caption=${ASSOCIATIONS}
      rows=${search.associations} empty="That needs a dozen trials with a value, and hyperparameters that differ."
      columns=${[["hyperparameter", (row) => row.name, "wide"], ["share", (row) => `${Math.round(100 * row.share)} %`, "number"],
        ["", (row) => html`<${Bar} share=${row.share} label=${`${Math.round(100 * row.share)} %`} />`, "bar"]]} />`;
}

function Trials({ search, chosen, onChoose }) {
  const columns = [
    ["trial", (row) => html`<button aria-pressed=${row.number === chosen} onClick=${() => onChoose(row.number)}>${row.number}</button>`,
      "number", (row) => row.number],
    ["state", (row) => html`<span class=${row.state === "error" ? "bad" : ""}>${row.state}</span>`, "", (row) => row.state],
    [search.metric, (row) => figure(row.metrics[search.metric]), "number", (row) => row.metrics[search.metric]],
    ...search.parameters.map((name) => [name, (row) => figure(row.config[name]), "number", (row) => row.config[name]]),
    ["reports", (row) => count(row.iterations), "number", (row) => row.iterations],
    ["time", (row) => duration(row.seconds), "number", (row) => row.seconds],
    ["", (row) => row.error ?? row.reason ?? "", "wide"],
  ];
  return html`<h2>Trials</h2>
    <${Table} id="trials" caption=${search.left_out ? `${count(search.left_out)} more are not shown.` : "All of them"}
      rows=${search.trials} columns=${columns} empty="No trial yet." />`;
}

function One({ path }) {
  const [search, setSearch] = useState(null);
  const [metric, setMetric] = useState("");
  const [chosen, setChosen] = useState(null);
  const [problem, setProblem] = useState("");
  useEffect(() => repeat(async () => {
    try {
      setSearch(await ask("/api/search", { path, width: 200, ...(metric ? { metric } : {}) }));
      setProblem("");
    } catch (error) {
      setProblem(error.message);
    }
  }, 2), [path, metric]);
  if (!search) return html`<p class="quiet">${problem}</p>`;
  const choose = (number) => setChosen(number === chosen ? null : number);
  const best = search.trials.filter((one) => one.score !== null).sort((one, other) => one.score - other.score)[0];
  return html`
    <${Figures} id="search" shown=${[["state", search.state, search.state === "interrupted" ? "bad" : ""],
      ["trials", count(search.count)],
      ...Object.entries(search.states).map(([state, number]) => [state, count(number), state === "error" ? "bad" : ""]),
      ...(best ? [["best trial", best.number], [`its ${search.metric}`, figure(best.metrics[search.metric])]] : [])]} />
    ${search.damaged > 0 && html`<p class="bad">${count(search.damaged)} lines of the log cannot be read.</p>`}
    ${search.metrics.length > 0 && html`<label>Metric${" "}<select value=${search.metric} onChange=${(event) => setMetric(event.target.value)}>
      ${search.metrics.map((name) => html`<option value=${name} selected=${name === search.metric}>${name}</option>`)}</select>
      ${" "}<span class="quiet">${search.mode === "max" ? "the greater, the better" : "the less, the better"}</span></label>`}
    <${Parallel} search=${search} chosen=${chosen} onChoose=${choose} />
    <${Curves} search=${search} chosen=${chosen} />
    <${Associations} search=${search} />
    <${Trials} search=${search} chosen=${chosen} onChoose=${choose} />`;
}

export function Search({ driver }) {
  const [searches, setSearches] = useState(null);
  const [chosen, setChosen] = useState(null);
  useEffect(() => repeat(async () => {
    try {
      const found = await ask("/api/searches");
      setSearches(driver ? found.filter((one) => one.driver_pid === driver) : found);
    } catch { /* the page's own requests show what is wrong */ }
  }, 2), [driver]);
  if (!searches) return null;
  if (!searches.length) {
    return html`<p>No search has run in this process. For earlier ones: <code>hocket dashboard FOLDER</code>.</p>`;
  }
  const path = searches.some((one) => one.path === chosen) ? chosen : searches[0].path;
  return html`
    <label>Search${" "}<select id="searches" value=${path} onChange=${(event) => setChosen(event.target.value)}>
      ${searches.map((one) => html`<option value=${one.path} selected=${one.path === path}>
        ${one.name}: ${one.state}, ${many(one.count, "trial")}</option>`)}</select></label>
    <${One} key=${path} path=${path} />`;
}
