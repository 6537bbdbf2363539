// Figures as people read them.

export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (value >= 1024 && at < units.length - 1) { value /= 1024; at += 1; }
  return `${value < 10 && at ? value.toFixed(1) : Math.round(value)} ${units[at]}`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 1e-3) return `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 1) return `${(seconds * 1e3).toPrecision(3)} ms`;
  if (seconds < 90) return `${seconds.toPrecision(3)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return `${(seconds / 3600).toPrecision(3)} h`;
}

export const count = (value) => Math.round(value).toLocaleString("en");

// A metric, or whatever else a program has reported.
export function figure(value) {
  if (value === null || value === undefined) return "-";
  if (typeof value !== "number") return String(value);
  return Math.abs(value) >= 1e7 ? value.toExponential(3) : Number(value.toPrecision(6)).toString();
}
