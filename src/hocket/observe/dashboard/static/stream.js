// The task stream: a row for each process, drawn on a canvas.

import { html, useEffect, useRef, useState } from "/static/vendor/htm-preact.js";
import { ask, repeat } from "/static/source.js";
import { count, duration } from "/static/text.js";

const ROW = 26;
const LABEL = 92;
const WINDOWS = [["1 s", 1], ["10 s", 10], ["1 min", 60], ["10 min", 600], ["all", 0]];
const WAITS = 4; // from here on, kinds are not runs of a user's code
const DEATH = 6;

const FAILED = 1;
const MERGED = 2; // several short runs in one record

const runsOf = (span) => (span[4] === MERGED ? span[5] : 1);
const isDark = () => matchMedia("(prefers-color-scheme: dark)").matches;

// One name, one color: the same on every page and after every reload.
function color(name) {
  let hash = 2166136261;
  for (let at = 0; at < name.length; at += 1) hash = Math.imul(hash ^ name.charCodeAt(at), 16777619) >>> 0;
  return `hsl(${hash % 360} ${45 + (hash >>> 9) % 25}% ${isDark() ? 62 : 45}%)`;
}

// Gives each span of a row a line without overlaps.
function stack(spans) {
  const ends = [];
  return spans.map((span) => {
    let line = ends.findIndex((end) => end <= span[0]);
    if (line < 0) line = ends.length;
    ends[line] = span[0] + span[1];
    return line;
  });
}

// The rows with spans, and the driver's row.
const listLanes = (picture, running) => picture.lanes.filter(
  (lane) => lane.count || !lane.worker_id || running.some((one) => one.pid === lane.pid));
const isFollowing = (picture) => picture.now - picture.end < 0.1;

function draw(canvas, picture, running) {
  const lanes = listLanes(picture, running);
  const width = canvas.clientWidth;
  const height = Math.max(1, lanes.length) * ROW + 4;
  const ratio = devicePixelRatio || 1;
  canvas.style.height = `${height}px`;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const to = canvas.getContext("2d");
  to.scale(ratio, ratio);
  const style = getComputedStyle(document.documentElement);
  const text = style.getPropertyValue("--text");
  const line = style.getPropertyValue("--line");
  const bad = style.getPropertyValue("--bad");
  const room = width - LABEL;
  const scale = room / (picture.end - picture.start);
  const hits = [];
  to.font = "12px system-ui, sans-serif";
  to.textBaseline = "middle";
  lanes.forEach((lane, at) => {
    const top = at * ROW + 2;
    to.fillStyle = text;
    to.fillText(lane.worker_id ? `worker ${lane.worker_id}` : "driver", 6, top + ROW / 2, LABEL - 10);
    to.fillStyle = line;
    to.fillRect(LABEL, top + ROW - 1, room, 1);
    const colors = lane.names.map(color);
    if (lane.busy) {
      const step = room / lane.busy.length;
      lane.busy.forEach((share, pixel) => {
        if (!share) return;
        const tall = Math.max(1, ((ROW - 5) * share) / 255);
        to.fillStyle = colors[lane.most[pixel]] ?? line;
        to.fillRect(LABEL + pixel * step, top + ROW - 3 - tall, Math.max(1, step), tall);
      });
    }
    const open = isFollowing(picture) ? running.find((one) => one.pid === lane.pid) : null;
    if (open) { // a running task has no span yet
      const left = Math.max(LABEL, width - open.task_seconds * scale);
      const span = [picture.end - open.task_seconds, open.task_seconds, -1, 0, 0, 0];
      to.globalAlpha = 0.55;
      to.fillStyle = color(open.task_name);
      to.fillRect(left, top + 2, width - left, ROW - 6);
      to.globalAlpha = 1;
      hits.push({ left, right: width, top: top + 2, bottom: top + ROW - 4, span, lane, open: open.task_name });
    }
    const lines = stack(lane.spans);
    const tall = (ROW - 5) / (1 + Math.max(0, ...lines));
    lane.spans.forEach((span, number) => {
      const left = Math.max(LABEL, LABEL + (span[0] - picture.start) * scale);
      const right = Math.min(width, LABEL + (span[0] + span[1] - picture.start) * scale);
      const y = top + 2 + lines[number] * tall;
      const wide = Math.max(1, right - left);
      to.fillStyle = colors[span[2]] ?? line;
      to.globalAlpha = span[3] >= WAITS ? 0.35 : 1;
      to.fillRect(left, y, wide, Math.max(1, tall - 1));
      to.globalAlpha = 1;
      if (span[3] === DEATH) {
        to.fillStyle = bad;
        to.fillRect(left - 1, top + 1, 3, ROW - 3);
      }
      if (span[4] === FAILED) {
        to.fillStyle = bad;
        to.fillRect(left, y + Math.max(1, tall - 1) - 2, Math.max(2, wide), 2);
      }
      hits.push({ left, right: left + wide, top: y, bottom: y + tall, span, lane });
    });
  });
  return hits;
}

function describe({ span, lane, open }) {
  const name = lane.names[span[2]] ?? "";
  const where = lane.worker_id ? `worker ${lane.worker_id}, pid ${lane.pid}` : `driver, pid ${lane.pid}`;
  if (open) return `${open}: runs for ${duration(span[1])} (${where})`;
  const runs = runsOf(span);
  const many = runs > 1 ? `${count(runs)} runs of ` : "";
  const more = runs === 1 && span[5] ? `, attempt ${span[5]}` : "";
  return `${many}${name}: ${duration(span[1])}${span[4] === FAILED ? ", failed" : ""}${more} (${where})`;
}

export function Stream({ pid, running }) {
  const canvas = useRef(null);
  const hits = useRef([]);
  const [seconds, setSeconds] = useState(10);
  const [end, setEnd] = useState(null);
  const [picture, setPicture] = useState(null);
  const [tip, setTip] = useState("");
  const isPaused = end !== null;

  useEffect(() => {
    const look = async () => {
      const width = Math.max(50, Math.round((canvas.current?.clientWidth ?? 800) - LABEL));
      const given = { pid, seconds, width };
      if (end !== null) given.end = end;
      try {
        setPicture(await ask("/api/events", given));
      } catch {
        // The page also asks for the session's state, and that answer says what is wrong.
      }
    };
    if (isPaused) { look(); return undefined; }
    return repeat(look, 1);
  }, [pid, seconds, end]);

  useEffect(() => {
    if (picture && canvas.current) hits.current = draw(canvas.current, picture, running);
  }, [picture]);

  useEffect(() => {
    const again = () => { if (picture && canvas.current) hits.current = draw(canvas.current, picture, running); };
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    addEventListener("resize", again);
    scheme.addEventListener("change", again);
    return () => { removeEventListener("resize", again); scheme.removeEventListener("change", again); };
  }, [picture]);

  const move = (share) => setEnd((picture?.end ?? 0) + share * ((picture?.end ?? 1) - (picture?.start ?? 0)));
  const onKey = (event) => {
    if (event.key === "ArrowLeft") move(-0.25);
    else if (event.key === "ArrowRight") move(0.25);
    else if (event.key === " ") setEnd(isPaused ? null : picture?.end ?? null);
    else return;
    event.preventDefault();
  };
  const onPoint = (event) => {
    const box = canvas.current.getBoundingClientRect();
    const x = event.clientX - box.left;
    const y = event.clientY - box.top;
    const hit = hits.current.find((one) => x >= one.left && x <= one.right && y >= one.top && y <= one.bottom);
    setTip(hit ? describe(hit) : "");
  };

  const counts = picture?.counts;
  const idle = picture ? picture.lanes.length - listLanes(picture, running).length : 0;
  const ago = picture ? picture.now - picture.end : 0;
  const gone = counts ? counts.missed + counts.dropped : 0;
  return html`
    <section aria-labelledby="stream">
      <h2 id="stream">What runs</h2>
      <div class="tools" role="group" aria-label="Stretch of time">
        ${WINDOWS.map(([label, length]) => html`
          <button aria-pressed=${seconds === length} onClick=${() => setSeconds(length)}>${label}</button>`)}
        <button onClick=${() => move(-0.25)} aria-label="Earlier">◀</button>
        <button onClick=${() => move(0.25)} aria-label="Later">▶</button>
        <button aria-pressed=${!isPaused} onClick=${() => setEnd(isPaused ? null : picture?.end ?? null)}>
          ${isPaused ? "Follow" : "Following"}</button>
      </div>
      <canvas ref=${canvas} tabindex="0" role="img" onKeyDown=${onKey} onPointerMove=${onPoint}
        aria-label="A row for each process, with what it ran in time. The table below has the sums."></canvas>
      <p class="tip" aria-live="off">${tip || html`<span class="quiet">Arrows move, space stops.</span>`}</p>
      ${counts && html`
        <p class="quiet" id="counts">
          ${duration(picture.end - picture.start)} until ${isFollowing(picture) ? "now" : `${duration(Math.max(0, ago))} ago`}:
          ${" "}${count(picture.total)} here${picture.is_dense ? ", as a picture of density" : ""};
          ${" "}${count(counts.written)} written = ${count(counts.kept)} kept
          ${gone ? html` + <span class="gap">${count(counts.missed)} overwritten before they were read</span>` : ""}
          ${counts.dropped ? ` + ${count(counts.dropped)} given up` : ""}.
          ${idle ? ` ${count(idle)} processes ran nothing in this stretch.` : ""}
        </p>`}
      ${picture && picture.names.length > 0 && html`
        <div class="scroll"><table>
          <caption class="quiet">In this stretch</caption>
          <thead><tr><th>name</th><th class="number">runs</th><th class="number">together</th>
            <th class="number">mean</th><th class="number">longest</th><th class="number">failed</th></tr></thead>
          <tbody>${picture.names.map((one) => html`<tr key=${one.name}>
            <td class="wide">${one.name}</td><td class="number">${count(one.runs)}</td>
            <td class="number">${duration(one.seconds)}</td>
            <td class="number">${duration(one.mean)}</td>
            <td class="number">${duration(one.longest)}</td>
            <td class=${one.failed ? "number bad" : "number"}>${one.failed}</td></tr>`)}
          </tbody></table></div>`}
    </section>`;
}
