// Training runs: curves, ranks' time by part, and ranks' stacks.

import { html, useEffect, useRef, useState } from "/static/vendor/htm-preact.js";
import { ask, repeat } from "/static/source.js";
import { count, duration, figure, many, tick } from "/static/text.js";

// The fields of `spending.Spent`, and the computing time after them.
const TOTAL = 0;
const PARTS = [
  ["compute", 7, "--compute"], ["data", 1, "--data"], ["waits for ranks", 2, "--wait"], ["exchange", 3, "--exchange"],
  ["report", 4, "--report"],
];
const COLORS = ["#0b62c4", "#c4520b", "#2a8a3e", "#8a2a86", "#8a6d00", "#0b8a8a", "#b3261e", "#5a6472"];
const DARK = ["#6cb2ff", "#ffb27a", "#7fd694", "#e39be0", "#e0b84c", "#6fd6d6", "#ff8a80", "#9aa5b4"];
const MOST_LINES = 8;
const HEIGHT = 200;

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const isDark = () => matchMedia("(prefers-color-scheme: dark)").matches;

// uPlot is no module, and only this page needs it, so load it as a script here.
let loading = null;
function loadPlots() {
  loading ??= new Promise((done, fail) => {
    const style = document.createElement("link");
    style.rel = "stylesheet";
    style.href = "/static/vendor/uplot.css";
    const script = document.createElement("script");
    script.src = "/static/vendor/uplot.js";
    script.onload = done;
    script.onerror = fail;
    document.head.append(style, script);
  });
  return loading;
}

// The lines of a metric, one for each rank; with many ranks rank 0, the least and the greatest.
function chooseLines(columns) {
  if (columns.length <= MOST_LINES) return columns.map((values, rank) => [`rank ${rank}`, values]);
  const over = (choose) => columns[0].map((_, at) => {
    const known = columns.map((values) => values[at]).filter((value) => value !== null);
    return known.length ? choose(...known) : null;
  });
  return [["rank 0", columns[0]], ["least", over(Math.min)], ["greatest", over(Math.max)]];
}

function Plot({ title, x, label, columns, unit, last }) {
  const holder = useRef(null);
  const plot = useRef(null);
  const lines = chooseLines(columns);
  const build = () => {
    plot.current?.destroy();
    plot.current = null;
    if (!holder.current || !window.uPlot) return;
    const colors = isDark() ? DARK : COLORS;
    const axis = { stroke: color("--quiet"), grid: { stroke: color("--line") }, ticks: { stroke: color("--line") } };
    plot.current = new window.uPlot({
      width: holder.current.clientWidth,
      height: HEIGHT,
      scales: { x: { time: false } },
      axes: [axis, {
        ...axis,
        size: (_, shown) => Math.max(44, 18 + 6.5 * Math.max(0, ...(shown ?? []).map((one) => one.length))),
        values: (_, ticks, _axis, _space, step) => ticks.map((one) => tick(one, step)),
      }],
      cursor: { sync: { key: "run" } },
      series: [{ label, value: (_, value) => figure(value) }, ...lines.map(([name], at) => ({
        label: name, stroke: colors[at % colors.length], width: 1.5, spanGaps: true, points: { show: x.length < 40 },
        value: (_, value) => figure(value) + (unit ?? ""),
      }))],
    }, [x, ...lines.map(([, values]) => values)], holder.current);
  };
  useEffect(() => {
    let ended = false;
    loadPlots().then(() => { if (!ended) build(); }, () => {});
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    addEventListener("resize", build);
    scheme.addEventListener("change", build);
    return () => {
      ended = true;
      removeEventListener("resize", build);
      scheme.removeEventListener("change", build);
      plot.current?.destroy();
      plot.current = null;
    };
  }, [title, lines.length, label]);
  useEffect(() => { plot.current?.setData([x, ...lines.map(([, values]) => values)]); }, [x, columns]);
  const rank = Math.max(0, columns.findIndex((values) => values.some((value) => value !== null)));
  const final = last ?? (columns[rank] ?? []).filter((value) => value !== null).at(-1);
  return html`<figure>
    <figcaption>${title}</figcaption>
    <div ref=${holder} class="plot"></div>
    <p class="quiet">${final === undefined || final === null ? "No number yet" : `Last ${figure(final)}${unit ?? ""} in rank ${rank}`}.</p>
  </figure>`;
}

function Anatomy({ run }) {
  if (!run.spent.length) return null;
  return html`
    <h2>What ranks spend their time on</h2>
    <p class="quiet">In the last half a minute of reports.
      ${PARTS.map(([name, , variable]) => html` <span class="key"><i class=${`swatch ${variable.slice(2)}`}></i>${name}</span>`)}</p>
    <div class="scroll"><table>
      <thead><tr><th>rank</th><th class="bar">share of the time</th>
        ${PARTS.map(([name]) => html`<th class="number">${name}</th>`)}<th class="number">step</th></tr></thead>
      <tbody>${run.spent.map((spent, rank) => html`<tr key=${rank}>
        <td>${rank}</td>
        <td class="bar"><div class="stacked" role="img" aria-label="The figures beside it as a bar">
          ${PARTS.map(([name, at, variable]) => html`<i class=${variable.slice(2)} title=${name}
            style=${{ width: `${Math.max(0, (100 * spent[at]) / (spent[TOTAL] || 1))}%` }}></i>`)}</div></td>
        ${PARTS.map(([, at]) => html`<td class="number">${Math.round((100 * spent[at]) / (spent[TOTAL] || 1))} %</td>`)}
        <td class="number">${spent[5] ? duration(spent[TOTAL] / spent[5]) : ""}</td></tr>`)}</tbody>
    </table></div>`;
}

function Ranks({ run }) {
  const [shown, setShown] = useState(null);
  const chosen = run.ranks.find((one) => one.rank === shown);
  return html`
    <h2>Ranks</h2>
    <div class="scroll"><table id="ranks">
      <thead><tr><th>rank</th><th>pid</th><th>process</th><th class="number">reports</th><th class="number">late by</th>
        <th>stack</th></tr></thead>
      <tbody>${run.ranks.map((one) => html`<tr key=${one.rank}>
        <td>${one.rank}</td><td>${one.pid || ""}</td>
        <td class=${one.status === "stopped" || one.status === "gone" ? "bad" : ""}>${one.status}</td>
        <td class="number">${count(one.reports)}</td>
        <td class="number">${one.late === null ? "" : duration(one.late)}</td>
        <td>${one.stack && html`<button aria-expanded=${shown === one.rank}
          onClick=${() => setShown(shown === one.rank ? null : one.rank)}>Show</button>`}</td></tr>`)}</tbody>
    </table></div>
    ${chosen?.stack && html`
      <p class="quiet">Rank ${chosen.rank}, ${duration(chosen.stack_age)} ago${chosen.status === "stopped"
        ? ", before it was stopped" : ""}:</p>
      <pre class="stack" tabindex="0">${chosen.stack}</pre>`}`;
}

function Failures({ run }) {
  return html`
    ${run.failures.map((one) => html`<div class="bad" role="status">
      ${Object.entries(one.errors).map(([rank, text]) => html`<p>Rank ${rank} failed at
        ${" "}${new Date(one.at * 1000).toLocaleTimeString()}: ${text}</p>`)}</div>`)}
    ${run.error && !run.failures.length && html`<p class="bad" role="status">${run.error}</p>`}`;
}

function Run({ path }) {
  const [run, setRun] = useState(null);
  const [problem, setProblem] = useState("");
  const [byTime, setByTime] = useState(false);
  const [wanted, setWanted] = useState("");
  useEffect(() => repeat(async () => {
    try {
      setRun(await ask("/api/run", { path, width: Math.max(100, Math.min(600, Math.round(innerWidth / 2))) }));
      setProblem("");
    } catch (error) {
      setProblem(error.message);
    }
  }, 1), [path]);
  if (!run) return html`<p class="quiet">${problem}</p>`;
  const x = byTime ? run.seconds : run.rows_drawn.map((row) => row + 1);
  const label = byTime ? "seconds" : "report";
  const names = Object.keys(run.curves).filter((name) => name.includes(wanted));
  const silent = run.now - run.last;
  return html`
    <dl class="figures" id="run">
      <div><dt>state</dt><dd class=${run.state === "failed" || run.state === "interrupted" ? "bad" : ""}>${run.state}</dd></div>
      <div><dt>ranks</dt><dd>${count(run.size)}</dd></div>
      <div><dt>reports</dt><dd>${count(run.rows)}</dd></div>
      <div><dt>checkpoints</dt><dd>${count(run.checkpoints.length)}</dd></div>
      <div><dt>for</dt><dd>${duration((run.ended ?? run.now) - run.started)}</dd></div>
      ${run.state === "running" && html`<div><dt>silent for</dt><dd>${duration(silent)}</dd></div>`}
      ${run.attempts > 1 && html`<div><dt>ranks started</dt><dd>${run.attempts} times</dd></div>`}
    </dl>
    <${Failures} run=${run} />
    ${run.advice.length > 0 && html`<h2>What holds it up</h2><ul id="advice">
      ${run.advice.map((text) => html`<li>${text}</li>`)}</ul>`}
    <${Anatomy} run=${run} />
    <${Ranks} run=${run} />
    <h2>Curves</h2>
    <div class="tools">
      <label>Metrics with${" "}<input type="search" value=${wanted} onInput=${(event) => setWanted(event.target.value)} /></label>
      <button aria-pressed=${!byTime} onClick=${() => setByTime(false)}>over reports</button>
      <button aria-pressed=${byTime} onClick=${() => setByTime(true)}>over time</button>
    </div>
    ${!run.rows && html`<p class="quiet">No report yet.</p>`}
    <div class="curves">
      ${names.map((name) => html`<${Plot} key=${name} title=${name} x=${x} label=${label} columns=${run.curves[name]}
        last=${run.lasts[name]} />`)}
      ${run.size > 1 && run.rows > 0 && html`<${Plot} key="late" title="Later than the first rank's report, by"
        x=${x} label=${label} columns=${run.late} unit=" s" />`}
    </div>
    ${run.left_out > 0 && html`<p class="quiet">${count(run.left_out)} more metrics are not drawn.</p>`}
    ${Object.keys(run.config).length > 0 && html`<h2>Configuration</h2><dl class="figures">
      ${Object.entries(run.config).map(([name, value]) => html`<div><dt>${name}</dt><dd>${String(value)}</dd></div>`)}</dl>`}`;
}

export function Training({ driver }) {
  const [runs, setRuns] = useState(null);
  const [chosen, setChosen] = useState(null);
  useEffect(() => repeat(async () => {
    try {
      const found = await ask("/api/runs");
      setRuns(driver ? found.filter((one) => one.driver_pid === driver) : found);
    } catch { /* the page's own requests show what is wrong */ }
  }, 2), [driver]);
  if (!runs) return null;
  if (!runs.length) {
    return html`<p>No trainer has run in this process. For earlier runs:
      <code>hocket dashboard FOLDER</code>.</p>`;
  }
  const path = runs.some((one) => one.path === chosen) ? chosen : runs[0].path;
  return html`
    <label>Run${" "}<select id="runs" value=${path} onChange=${(event) => setChosen(event.target.value)}>
      ${runs.map((one) => html`<option value=${one.path} selected=${one.path === path}>
        ${one.name}: ${one.state}, ${many(one.rows, "report")}</option>`)}</select></label>
    <${Run} key=${path} path=${path} />`;
}
