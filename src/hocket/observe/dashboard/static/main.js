// The pages of one session, or the choice among several.

import { html, render, useEffect, useState } from "/static/vendor/htm-preact.js";
import { ask, repeat } from "/static/source.js";
import { Data, Mesh, Servers } from "/static/parts.js";
import { Search } from "/static/search.js";
import { Stacks } from "/static/stacks.js";
import { Stream } from "/static/stream.js";
import { Table, Figures as List } from "/static/table.js";
import { bytes, count, duration } from "/static/text.js";
import { Training } from "/static/training.js";

const PAGES = [
  ["now", "Now"], ["training", "Training"], ["search", "Search"], ["servers", "Servers"], ["data", "Data"], ["mesh", "Mesh"],
  ["workers", "Workers"], ["actors", "Actors"], ["memory", "Memory"], ["errors", "Errors"],
];

function Figures({ session }) {
  const { snapshot, processes } = session;
  const memory = processes.reduce((sum, one) => sum + one.rss_bytes, 0);
  const shown = [["processes", count(processes.length)], ["resident memory", bytes(memory)]];
  if (snapshot) {
    shown.unshift(["open for", duration(Date.now() / 1000 - snapshot.opened_at)]);
    for (const [name, total] of Object.entries(snapshot.resources.total)) {
      if (name.startsWith("node:")) continue;
      const used = total - snapshot.resources.free[name];
      const isBytes = name.includes("memory");
      shown.push([`${name.replaceAll("_", " ")} asked for`, isBytes ? `${bytes(used)} of ${bytes(total)}` : `${used} of ${total}`]);
    }
  }
  return html`<${List} shown=${shown} />`;
}

function Tasks({ snapshot }) {
  return html`<h2>Tasks</h2><${Table} caption=${cut("By function and state", snapshot.left_out?.tasks)} rows=${snapshot.tasks} empty="No task yet."
    columns=${[["function", (row) => row.func_or_class_name, "wide"], ["kind", (row) => KIND[row.type] ?? row.type],
      ["state", (row) => row.state.replaceAll("_", " ").toLowerCase()],
      ["count", (row) => count(row.count), "number"]]} />`;
}

const cut = (caption, left) => (left ? `${caption}; ${count(left)} more rows are not shown` : caption);

const KIND = { NORMAL_TASK: "task", ACTOR_TASK: "call", ACTOR_CREATION_TASK: "constructor" };

function Workers({ session }) {
  const [looked, setLooked] = useState(null);
  const look = (pid) => html`<button aria-pressed=${looked === pid}
    onClick=${() => setLooked(looked === pid ? null : pid)}>Look</button>`;
  const known = new Map(session.processes.map((one) => [one.pid, one]));
  const rows = session.snapshot?.workers ?? [];
  return html`<h2>Workers</h2><${Table} caption=${cut("Living ones", session.snapshot?.left_out?.workers)} rows=${rows} empty="No worker yet."
    columns=${[["pid", (row) => row.pid], ["state", (row) => row.state.toLowerCase()],
      ["runs", (row) => row.task_name ?? "", "wide"], ["for", (row) => duration(row.task_seconds), "number"],
      ["queued", (row) => count(row.queued_tasks ?? 0), "number"],
      ["memory", (row) => (known.has(row.pid) ? bytes(known.get(row.pid).rss_bytes) : ""), "number"],
      ["CPU time", (row) => (known.has(row.pid) ? duration(known.get(row.pid).cpu_seconds) : ""), "number"],
      ["stack", (row) => look(row.pid)]]} />
    ${looked && known.has(looked) && html`<${Stacks} pid=${session.driver_pid} process=${looked} />`}
    <h2>Processes</h2><${Table} caption="As the system sees them" rows=${session.processes} empty=""
    columns=${[["pid", (row) => row.pid], ["role", (row) => row.role], ["status", (row) => row.status],
      ["memory", (row) => bytes(row.rss_bytes), "number"], ["CPU time", (row) => duration(row.cpu_seconds), "number"],
      ["stack", (row) => (row.role === "driver" ? look(row.pid) : "")], ["command", (row) => row.command, "wide"]]} />`;
}

function Actors({ snapshot }) {
  return html`<h2>Actors</h2><${Table} caption=${cut("Living ones", snapshot.left_out?.actors)} rows=${snapshot.actors} empty="No actor lives."
    columns=${[["class", (row) => row.class_name, "wide"], ["name", (row) => row.name, "wide"],
      ["state", (row) => row.state.replaceAll("_", " ").toLowerCase()], ["pid", (row) => row.pid],
      ["calls waiting", (row) => count(row.pending_calls), "number"],
      ["restarts", (row) => count(row.num_restarts), "number"]]} />`;
}

function Memory({ snapshot }) {
  const found = snapshot.statistics;
  const figures = Object.entries(found).filter(([, value]) => typeof value === "number");
  return html`<h2>Memory</h2>
    <${Table} caption="By source line" rows=${found.holders ?? []} empty="No line of the program holds stored values."
      columns=${[["line", ([line]) => line, "wide"], ["holds", ([, held]) => bytes(held), "number"],
        ["values", ([, , values]) => count(values), "number"]]} />
    <${Table} caption="The store" rows=${figures} empty=""
      columns=${[["figure", ([name]) => name.replaceAll("_", " ")],
        ["value", ([name, value]) => (name.includes("bytes") ? bytes(value) : name.includes("pid") ? value : count(value)),
          "number"]]} />`;
}

function Errors({ snapshot }) {
  return html`<h2>Errors</h2>
    <${Table} caption=${`The latest of ${count(snapshot.errors.count)}`} rows=${snapshot.errors.last.slice().reverse()}
      empty="Nothing has failed."
      columns=${[["at", (row) => new Date(row.at * 1000).toLocaleTimeString()], ["task", (row) => row.name, "wide"],
        ["error", (row) => row.type], ["message", (row) => row.message, "wide"]]} />`;
}

function Session({ pid, page }) {
  const [session, setSession] = useState(null);
  const [problem, setProblem] = useState("");
  useEffect(() => repeat(async () => {
    try {
      setSession(await ask("/api/now", { pid }));
      setProblem("");
    } catch (error) {
      setProblem(error.message === "Failed to fetch" ? "The dashboard has ended." : error.message);
    }
  }, 1), [pid]);
  const snapshot = session?.snapshot;
  const told = problem || session?.problem || snapshot?.failure;
  return html`
    ${told && html`<p class="bad" role="status">${told}</p>`}
    ${session && html`<${Figures} session=${{ ...session, snapshot: snapshot?.failure ? null : snapshot }} />`}
    ${page === "now" && html`<${Stream} pid=${pid} running=${(snapshot?.workers ?? []).filter((one) => one.task_name)} />`}
    ${page === "training" && html`<${Training} driver=${pid} />`}
    ${page === "search" && html`<${Search} driver=${pid} />`}
    ${page === "servers" && html`<${Servers} pid=${pid} />`}
    ${page === "data" && html`<${Data} pid=${pid} />`}
    ${page === "mesh" && html`<${Mesh} pid=${pid} />`}
    ${page === "workers" && session && html`<${Workers} session=${session} />`}
    ${snapshot && !snapshot.failure && html`
      ${page === "now" && html`<${Tasks} snapshot=${snapshot} />`}
      ${page === "actors" && html`<${Actors} snapshot=${snapshot} />`}
      ${page === "memory" && html`<${Memory} snapshot=${snapshot} />`}
      ${page === "errors" && html`<${Errors} snapshot=${snapshot} />`}`}`;
}

// The pages without a session: the runs and searches of a folder.
function useFolder(isWanted) {
  const [found, setFound] = useState({ runs: [], searches: [] });
  useEffect(() => (isWanted ? repeat(async () => {
    try {
      setFound({ runs: await ask("/api/runs"), searches: await ask("/api/searches") });
    } catch { /* the list of sessions shows what is wrong */ }
  }, 2) : undefined), [isWanted]);
  return found;
}

function Page() {
  const [sessions, setSessions] = useState(null);
  const [problem, setProblem] = useState("");
  const [chosen, setChosen] = useState(null);
  const [page, setPage] = useState("now");
  useEffect(() => repeat(async () => {
    try {
      setSessions(await ask("/api/sessions"));
      setProblem("");
    } catch (error) {
      setProblem(error.message === "Failed to fetch" ? "The dashboard has ended." : error.message);
    }
  }, 2), []);
  const pids = (sessions ?? []).map((one) => one.pid);
  const pid = pids.includes(chosen) ? chosen : pids.at(-1);
  const { runs, searches } = useFolder(sessions !== null && !pids.length);
  return html`
    <header>
      <h1>Hocket</h1>
      ${pids.length > 0 && html`<label>Session of pid${" "}
        <select value=${pid} onChange=${(event) => setChosen(Number(event.target.value))}>
          ${pids.map((one) => html`<option value=${one} selected=${one === pid}>${one}</option>`)}</select></label>`}
      <nav aria-label="Pages">${pids.length > 0 && PAGES.map(([name, label]) => html`
        <button aria-current=${name === page ? "page" : false} onClick=${() => setPage(name)}>${label}</button>`)}</nav>
    </header>
    <main>
      ${problem && html`<p class="bad" role="alert">${problem}</p>`}
      ${!pids.length && searches.length > 0 && html`<${Search} />`}
      ${!pids.length && runs.length > 0 && html`<${Training} />`}
      ${sessions && !pids.length && !runs.length && !searches.length && !problem && html`
        <p>No session of yours has workers on this machine. One appears here with its first task.</p>`}
      ${pid && html`<${Session} key=${pid} pid=${pid} page=${page} />`}
    </main>`;
}

render(html`<${Page} />`, document.getElementById("page"));
