// The stacks of a process's threads, and a flame graph of one second.

import { html, useEffect, useState } from "/static/vendor/htm-preact.js";
import { ask } from "/static/source.js";

const LEAST = 0.004; // narrower boxes are left out

// A tree of calls from folded stacks: {name, count, children}.
function grow(samples) {
  const root = { name: "all", count: 0, children: new Map() };
  for (const [stack, times] of Object.entries(samples)) {
    root.count += times;
    let node = root;
    for (const name of stack.split(";")) {
      if (!node.children.has(name)) node.children.set(name, { name, count: 0, children: new Map() });
      node = node.children.get(name);
      node.count += times;
    }
  }
  return root;
}

function Boxes({ node, whole }) {
  const children = [...node.children.values()].filter((one) => one.count / whole > LEAST);
  if (!children.length) return null;
  children.sort((one, other) => other.count - one.count);
  return html`<ul class="flame">${children.map((child) => html`
    <li key=${child.name} style=${{ width: `${(100 * child.count) / node.count}%` }}>
      <div class="frame" title=${`${child.name}: ${Math.round((100 * child.count) / whole)} %`}>${child.name}</div>
      <${Boxes} node=${child} whole=${whole} /></li>`)}</ul>`;
}

export function Stacks({ pid, process }) {
  const [stack, setStack] = useState("");
  const [tree, setTree] = useState(null);
  const [told, setTold] = useState("");
  const [again, setAgain] = useState(0);
  useEffect(() => {
    let ended = false;
    setTree(null);
    setTold("Looking for a second …");
    ask("/api/stack", { pid, process }).then((text) => { if (!ended) setStack(text); }, (error) => {
      if (!ended) setStack(error.message);
    });
    ask("/api/flame", { pid, process }).then((samples) => {
      if (ended) return;
      const grown = grow(samples);
      setTree(grown);
      setTold(grown.count ? "" : "Nothing of the program ran.");
    }, () => { if (!ended) setTold("There are no samples: the process is stopped, has ended, or does not answer."); });
    return () => { ended = true; };
  }, [pid, process, again]);
  return html`
    <section aria-label=${`Process ${process}`}>
      <h2>Process ${process}</h2>
      <div class="tools"><button onClick=${() => setAgain(again + 1)}>Look again</button>
        <span class="quiet" role="status">${told}</span></div>
      ${tree && tree.count > 0 && html`<div class="scroll" id="flame"><${Boxes} node=${tree} whole=${tree.count} /></div>`}
      <pre class="stack" tabindex="0">${stack}</pre>
    </section>`;
}
