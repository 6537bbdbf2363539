// Figures in readable form.

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

export const many = (value, what) => `${count(value)} ${what}${Math.round(value) === 1 ? "" : "s"}`;

// A reported value: a whole number as it is, another with six digits or three after the point.
export function figure(value) {
  if (value === null || value === undefined) return "-";
  if (typeof value !== "number" || Number.isSafeInteger(value)) return String(value);
  const size = Math.abs(value);
  return size >= 1e6 && size < 1e15 ? String(Number(value.toFixed(3))) : String(Number(value.toPrecision(6)));
}

// A mark of an axis, with enough digits to differ from the next one.
export function tick(value, step) {
  const size = Math.abs(value);
  if (value !== 0 && (size >= 1e9 || step < 1e-6)) {
    return value.toExponential(Math.max(0, Math.min(12, Math.ceil(Math.log10(size / step) - 1e-9))));
  }
  return value.toFixed(Math.max(0, Math.min(12, Math.ceil(-Math.log10(step) - 1e-9))));
}
