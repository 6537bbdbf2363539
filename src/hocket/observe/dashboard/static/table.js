// Tables of rows, and small bars in them.

import { html, useState } from "/static/vendor/htm-preact.js";

// Columns are [label, show, kind, key]. If there is a key, a click on the label sorts by it.
export function Table({ caption, columns, rows, empty, id }) {
  const [order, setOrder] = useState([null, 1]);
  if (!rows.length) return html`<p class="quiet">${empty}</p>`;
  const [at, sign] = order;
  const key = at === null ? null : columns[at]?.[3];
  const sorted = key ? rows.slice().sort((one, other) => compare(key(one), key(other), sign)) : rows;
  const head = ([label, , kind, sorts], number) => html`<th class=${kind ?? ""}
    aria-sort=${number === at ? (sign > 0 ? "ascending" : "descending") : undefined}>
    ${sorts ? html`<button class="plain" onClick=${() => setOrder([number, number === at ? -sign : 1])}>
      ${label}${number === at ? (sign > 0 ? " ↑" : " ↓") : ""}</button>` : label}</th>`;
  return html`<div class="scroll"><table id=${id}>
    <caption class="quiet">${caption}</caption>
    <thead><tr>${columns.map(head)}</tr></thead>
    <tbody>${sorted.map((row) => html`<tr>
      ${columns.map(([, show, kind]) => html`<td class=${kind ?? ""}>${show(row)}</td>`)}</tr>`)}</tbody>
  </table></div>`;
}

// Unknown values come last in either order.
function compare(one, other, sign) {
  const [hasOne, hasOther] = [one ?? null, other ?? null].map((value) => value !== null);
  if (!hasOne || !hasOther) return Number(hasOther) - Number(hasOne);
  if (typeof one === "number" && typeof other === "number") return sign * (one - other);
  return sign * String(one).localeCompare(String(other), undefined, { numeric: true });
}

export function Figures({ shown, id }) {
  return html`<dl class="figures" id=${id}>
    ${shown.map(([name, value, kind]) => html`<div key=${name}><dt>${name}</dt><dd class=${kind ?? ""}>${value}</dd></div>`)}</dl>`;
}

export function Bar({ share, label }) {
  return html`<div class="stacked" role="img" aria-label=${label}>
    <i class="exchange" style=${{ width: `${Math.max(0, Math.min(100, 100 * share))}%` }}></i></div>`;
}
