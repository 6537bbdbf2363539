// Parts of the session's processes: parameter servers, datasets, meshes.

import { html, useEffect, useRef, useState } from "/static/vendor/htm-preact.js";
import { ask, repeat } from "/static/source.js";
import { Bar, Figures, Table } from "/static/table.js";
import { bytes, count, duration } from "/static/text.js";

const SILENT_SECONDS = 3;

function useParts(pid) {
  const [parts, setParts] = useState(null);
  useEffect(() => repeat(async () => {
    try { setParts(await ask("/api/parts", { pid })); } catch { /* the page's own requests show what is wrong */ }
  }, 1), [pid]);
  return parts;
}

const problems = (found) => found.filter((one) => one.problem).map((one) => html`
  <p class="bad" role="status">Process ${one.pid} cannot say: ${one.problem}</p>`);

const silence = (row) => (row.ago > SILENT_SECONDS ? html`<span class="bad">silent for ${duration(row.ago)}</span>` : "answers");

function groupBy(rows, key) {
  const groups = new Map();
  for (const row of rows) groups.set(key(row), [...(groups.get(key(row)) ?? []), row]);
  return groups;
}

// Returns a count's growth per second, over the last ten seconds at most.
function useRate(value) {
  const seen = useRef([]);
  const now = performance.now() / 1000;
  seen.current = [...seen.current.filter(([at]) => now - at < 10), [now, value]];
  const [at, before] = seen.current[0];
  return now - at > 0.5 && value >= before ? (value - before) / (now - at) : null;
}

// --- parameter servers ---

function Staleness({ gate }) {
  const rows = gate.staleness ?? [];
  const total = rows.reduce((sum, [, pushes]) => sum + pushes, 0);
  const most = Math.max(1, ...rows.map(([, pushes]) => pushes));
  return html`<h3>Staleness</h3>
    <${Table} id="staleness" caption="By how many pushes of others between pull and push" rows=${rows.slice(0, 50)} empty="No push yet."
      columns=${[["staleness", ([at]) => at], ["pushes", ([, pushes]) => count(pushes), "number"],
        ["share", ([, pushes]) => `${Math.round((100 * pushes) / total)} %`, "number"],
        ["", ([at, pushes]) => html`<${Bar} share=${pushes / most} label=${`${pushes} pushes of staleness ${at}`} />`, "bar"]]} />
    ${rows.length > 50 && html`<p class="quiet">${count(rows.length - 50)} greater ones are not shown.</p>`}`;
}

function Coordinator({ facts }) {
  return html`<h3>Closures</h3>
    <${Figures} shown=${[["finished", count(facts.finished_closures)], ["in flight", count(facts.inflight_closures)],
      ["queued", count(facts.queued_closures)], ["workers replaced", count(facts.recoverable_worker_failure_count)],
      ["ran for", duration(facts.closure_execution_seconds)]]} />
    <${Table} caption="Workers" rows=${facts.workers} empty="No worker."
      columns=${[["worker", (row) => row.worker], ["closures taken", (row) => count(row.taken), "number"],
        ["batches there", (row) => count(row.has), "number"], ["", (row) => (row.is_leaving ? "leaves" : "")]]} />`;
}

function Strategy({ servers, coordinators }) {
  const gate = servers.find((one) => one.server === 0) ?? {};
  const rate = useRate(gate.version ?? 0);
  const shards = servers.flatMap((one) => one.shards ?? []);
  const variables = [...groupBy(shards, (one) => one.name)].map(([name, parts]) => ({
    name, parts: parts.length, shape: parts[0].shape, optimizer: parts[0].optimizer,
    bytes: parts.reduce((sum, one) => sum + one.bytes, 0),
  }));
  const size = (one) => (one.shards ?? []).reduce((sum, shard) => sum + shard.bytes, 0);
  const recoveries = servers.reduce((sum, one) => sum + (one.recoveries ?? 0), 0);
  return html`
    <${Figures} id="servers" shown=${[["servers", count(servers.length)],
      [gate.needed ? "steps" : "pushes", count(gate.version ?? 0)],
      ["a second", rate === null ? "-" : Number(rate.toPrecision(3))],
      ["memory", bytes(servers.reduce((sum, one) => sum + size(one), 0))],
      ["kills survived", count(recoveries)], ["too late", count(gate.late ?? 0)],
      ["not finite", count(gate.skipped ?? 0)],
      ["bound on staleness", gate.needed ? "synchronous" : gate.max_staleness ?? "none"]]} />
    <${Staleness} gate=${gate} />
    ${coordinators.map((one) => html`<${Coordinator} facts=${one} />`)}
    <h3>Servers</h3>
    <${Table} caption="Kills survived: updates that a process left half done, and another one finished or undid" rows=${servers}
      empty="" columns=${[["server", (row) => row.server], ["pid", (row) => row.pid],
        ["updates", (row) => count(row.updates), "number"], ["kills survived", (row) => count(row.recoveries), "number"],
        ["memory", (row) => bytes(size(row)), "number"], ["process", silence]]} />
    <h3>Variables</h3>
    <${Table} caption="With what their optimizers keep" rows=${variables} empty="No variable yet."
      columns=${[["name", (row) => row.name, "wide", (row) => row.name], ["first shard", (row) => row.shape],
        ["shards", (row) => row.parts, "number", (row) => row.parts],
        ["memory", (row) => bytes(row.bytes), "number", (row) => row.bytes], ["optimizer", (row) => row.optimizer ?? ""]]} />`;
}

export function Servers({ pid }) {
  const parts = useParts(pid);
  if (!parts) return null;
  const found = parts.servers ?? [];
  const known = groupBy(found.filter((one) => !one.problem), (one) => one.strategy);
  if (!found.length) return html`<p>No parameter server. <code>ps.ParameterServerStrategy</code> starts some.</p>`;
  return html`${problems(found)}
    ${[...known].map(([strategy, servers], number) => html`<section key=${strategy}>
      <h2>Parameter servers ${known.size > 1 ? number + 1 : ""}</h2>
      <${Strategy} servers=${servers.slice().sort((one, other) => one.server - other.server)}
        coordinators=${(parts.coordinators ?? []).filter((one) => one.strategy === strategy)} /></section>`)}`;
}

// --- datasets ---

function Execution({ facts, number }) {
  const last = facts.stages.at(-1);
  const longest = Math.max(1e-9, ...facts.stages.flatMap((one) => [one.waited, one.held]));
  const time = (row, name) => html`${duration(row[name])}<${Bar} share=${row[name] / longest} label=${duration(row[name])} />`;
  return html`<section>
    <h2>Execution ${number}: ${facts.has_ended ? "over" : "runs"}, in process ${facts.pid}</h2>
    <${Figures} shown=${[["rows", facts.rows === null ? count(last.rows) : `${count(last.rows)} of ${count(facts.rows)}`],
      ["bytes", bytes(last.bytes)], ["blocks", count(last.blocks)]]} />
    <p>${facts.judgement}</p>
    <${Table} caption="Stages, in order" rows=${facts.stages} empty=""
      columns=${[["stage", (row) => row.name, "wide"], ["blocks", (row) => count(row.blocks), "number"],
        ["rows", (row) => count(row.rows), "number"], ["bytes", (row) => bytes(row.bytes), "number"],
        ["waited for", (row) => time(row, "waited"), "bar"], ["held up", (row) => time(row, "held"), "bar"]]} />
  </section>`;
}

export function Data({ pid }) {
  const parts = useParts(pid);
  if (!parts) return null;
  const found = parts.executions ?? [];
  if (!found.length) return html`<p>No dataset is being read or kept by the program. <code>hocket.data</code> makes datasets.</p>`;
  const known = found.filter((one) => !one.problem).map((one, at) => [one, at + 1]).reverse();
  known.sort(([one], [other]) => Number(one.has_ended) - Number(other.has_ended));
  return html`${problems(found)}
    ${known.slice(0, 20).map(([one, number]) => html`<${Execution} key=${number} facts=${one} number=${number} />`)}
    ${known.length > 20 && html`<p class="quiet">${count(known.length - 20)} older ones are not shown.</p>`}`;
}

// --- meshes ---

// A square for each device. Squares of one colour hold the same shard of the value.
function Parts({ parts }) {
  const known = [...new Set(parts.map(String))];
  const label = `${known.length} different parts on ${parts.length} devices`;
  return html`<span class="devices" role="img" aria-label=${label} title=${label}>
    ${parts.slice(0, 64).map((one, device) => html`<i title=${`device ${device}: part ${one.join(", ") || "all"}`}
      style=${{ background: `hsl(${(known.indexOf(String(one)) * 360) / known.length} 55% 55%)` }}></i>`)}</span>`;
}

export function Mesh({ pid }) {
  const parts = useParts(pid);
  const [chosen, setChosen] = useState(null);
  if (!parts) return null;
  const found = parts.meshes ?? [];
  if (!found.length) return html`<p>No process has spread a value over a mesh. <code>hocket.mesh</code> does it.</p>`;
  const known = found.filter((one) => !one.problem);
  const shown = known.find((one) => one.pid === chosen) ?? known[0];
  const sum = (rows, name) => rows.reduce((total, one) => total + one[name], 0);
  return html`${problems(found)}
    ${shown && html`
      ${known.length > 1 && html`<label>Process${" "}<select value=${shown.pid} onChange=${(event) => setChosen(Number(event.target.value))}>
        ${known.map((one) => html`<option value=${one.pid} selected=${one === shown}>${one.pid}</option>`)}</select></label>`}
      <${Figures} id="mesh" shown=${[["values", count(shown.values.length)], ["all of them", bytes(sum(shown.values, "bytes"))],
        ["on a device", bytes(sum(shown.values, "local_bytes"))], ["moved to a device", bytes(sum(shown.moved, "bytes"))]]} />
      <h2>Values</h2>
      <${Table} caption="As they were spread last" rows=${shown.values} empty="No value has a name."
        columns=${[["name", (row) => row.name, "wide", (row) => row.name],
          ["mesh", (row) => row.mesh.map(([name, size]) => `${name}: ${size}`).join(", ")],
          ["shape", (row) => row.shape.join(" x ") || "a number"], ["layout", (row) => row.layout.join(", ")],
          ["bytes", (row) => bytes(row.bytes), "number", (row) => row.bytes],
          ["on a device", (row) => bytes(row.local_bytes), "number", (row) => row.local_bytes],
          ["who has which part", (row) => html`<${Parts} parts=${row.parts} />`]]} />
      <h2>Relayouts</h2>
      <${Table} caption="Outside of compiled functions; bytes are what a device received" rows=${shown.moved} empty="None yet."
        columns=${[["step", (row) => row.kind], ["along", (row) => row.axis], ["times", (row) => count(row.count), "number"],
          ["bytes", (row) => bytes(row.bytes), "number"]]} />`}`;
}
