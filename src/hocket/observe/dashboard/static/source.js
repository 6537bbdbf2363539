// The source of the data: the token, and repeated requests, one at a time for each path.

const KEY = "hocket-token";

// The token comes in the fragment. Remove it from the address at once, so that a copied address does not have it.
function takeToken() {
  const given = location.hash.slice(1);
  if (/^[0-9a-f]{64}$/.test(given)) {
    sessionStorage.setItem(KEY, given);
    history.replaceState(null, "", location.pathname);
  }
  return sessionStorage.getItem(KEY) ?? "";
}

const token = takeToken();

export class Refused extends Error {}

export async function ask(path, given = {}) {
  const query = new URLSearchParams(given).toString();
  const answer = await fetch(query ? `${path}?${query}` : path, {
    headers: { authorization: `Bearer ${token}` },
    credentials: "omit",
  });
  if (answer.ok) return answer.json();
  throw new Refused(await answer.text());
}

// Calls `look` now, and `seconds` after each call's end while the page is visible; returns a function that stops this.
export function repeat(look, seconds) {
  let timer = 0;
  let stopped = false;
  const turn = async () => {
    clearTimeout(timer);
    if (stopped) return;
    if (!document.hidden) await look();
    if (!stopped) timer = setTimeout(turn, seconds * 1000);
  };
  const onVisible = () => { if (!document.hidden) turn(); };
  document.addEventListener("visibilitychange", onVisible);
  turn();
  return () => {
    stopped = true;
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", onVisible);
  };
}
