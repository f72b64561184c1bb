// Numbers, times and events in words.

const MIDNIGHT = /T00:00:00(\.0+)?(Z|\+00:00)$/;
const SIGNS = { suspected: "?", confirmed: "✓", withdrawn: "✕", anomaly: "◇" };

const DAY_MS = 864e5;
const DIGITS = 4;
const ALIKE = 9; // digits of values that are all the same: others elsewhere may be near
const MOST = 15; // digits of a float64

/**
 * Significant digits that tell values apart, three of their range: 1,000,000.1 from 1,000,000.3.
 * @param {(number|null|undefined)[]} values
 */
export function digitsOf(values) {
  const known = /** @type {number[]} */ (values.filter((each) => Number.isFinite(each)));
  const low = known.reduce((a, b) => Math.min(a, b), Infinity);
  const high = known.reduce((a, b) => Math.max(a, b), -Infinity);
  if (!(high > low)) return known.length ? ALIKE : DIGITS;
  const ratio = Math.max(Math.abs(low), Math.abs(high)) / (high - low);
  return Math.min(MOST, Math.max(DIGITS, Math.ceil(Math.log10(ratio)) + 3));
}

/** @param {number|null|undefined} value @param {number} [digits] significant ones */
export function number(value, digits = DIGITS) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size >= 10 ** Math.max(7, digits) || size < 1e-4)) {
    const text = value.toExponential(Math.max(2, digits - DIGITS));
    return text.replace(/\.?0+e/, "e").replaceAll("-", "−");
  }
  return value.toLocaleString("en", { maximumSignificantDigits: digits }).replace("-", "−");
}

/** @param {number|null|undefined} value */
export const count = (value) => (value ?? 0).toLocaleString("en");

/** @param {number|null|undefined} value a probability */
export function percent(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0 %";
  if (value < 0.001) return "< 0.1 %";
  if (value < 1 && value > 0.999) return "> 99.9 %";
  return `${(100 * value).toFixed(value < 0.0995 ? 1 : 0)} %`;
}

/** How rarely evidence of a change gets as strong by chance. @param {number|null|undefined} evidence */
export function once(evidence) {
  if (evidence === null || evidence === undefined) return "–";
  const every = Math.max(1, Math.round(Number(evidence.toPrecision(2))));
  if (every >= 1e9) return "once in a billion+";
  return every < 1e6 ? `once in ${count(every)}` : `once in ${number(every / 1e6, 2)} million`;
}

const UNITS = /** @type {[string, number, number][]} */ ([
  ["s", 1, 90],
  ["min", 60, 90],
  ["h", 3600, 60],
  ["days", 86400, 730],
]);
const YEAR_S = 365.25 * 86400;
const CENTURY = 100;

/** A length of time, in the unit that fits. @param {number} seconds */
export function lasting(seconds) {
  for (const [unit, size, most] of UNITS)
    if (seconds < most * size) return `${count(Math.max(1, Math.round(seconds / size)))}\u00a0${unit}`;
  const years = Math.round(seconds / YEAR_S);
  return years < CENTURY ? `${years} years` : "a century+";
}

/** How rarely a stream may raise a false alarm, in observations and in days. @param {any} period */
export const alarms = (period) =>
  `${once(period.false_alarm_every)}, one in ${plural(Math.round(period.days), "day")}`;

/** @param {string|null|undefined} time RFC 3339 */
export function moment(time) {
  if (!time) return "";
  if (MIDNIGHT.test(time)) return time.slice(0, 10);
  return stamp(time);
}

/** @param {string} time */
function stamp(time) {
  const at = new Date(time);
  if (Number.isNaN(at.getTime())) return time;
  const pad = (/** @type {number} */ n) => String(n).padStart(2, "0");
  const day = `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())}`;
  return `${day} ${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
}

/** A moment without its day, if that is today. @param {string|null|undefined} time */
export function brief(time) {
  const whole = moment(time),
    today = moment(new Date().toISOString()).slice(0, 10);
  return whole.startsWith(`${today} `) ? whole.slice(11) : whole;
}

/** Hours and minutes; with seconds where there are any; of days their date. @param {string} time */
export function clock(time) {
  const whole = moment(time);
  return whole.length < 12 ? whole : whole.slice(11).replace(/:00$/, "");
}

/** Two moments, of two days with these unless it is less than a day. @param {string} from @param {string} to */
export function between(from, to) {
  const apart = dayOf(from) !== dayOf(to);
  const ms = Date.parse(to) - Date.parse(from);
  if (apart && ms > 0 && ms < DAY_MS) return [from, to].map((time) => stamp(time).slice(11).replace(/:00$/, "")).join("–");
  const [a, b] = [from, to].map((time) => (apart && !MIDNIGHT.test(time) ? dated(time) : clock(time)));
  return a === b ? a : `${a}–${b}`;
}

/** The day of a moment, as one says it. @param {string} time */
export function dayOf(time) {
  const at = new Date(time);
  const now = new Date();
  const midnight = new Date(now.getFullYear(), now.getMonth(), now.getDate()).getTime();
  const days = (midnight - new Date(at.getFullYear(), at.getMonth(), at.getDate()).getTime()) / 864e5;
  if (days > -0.5 && days < 0.5) return "Today";
  if (days > 0.5 && days < 1.5) return "Yesterday";
  const year = at.getFullYear() === now.getFullYear() ? undefined : "numeric";
  return at.toLocaleDateString("en-GB", { day: "numeric", month: "short", year });
}

/** Day and time of a moment; of a day its name alone. @param {string} time */
export const dated = (time) => (MIDNIGHT.test(time) ? dayOf(time) : `${dayOf(time)} ${clock(time)}`);

const WORDS = "no one two three four five six seven eight nine ten eleven twelve".split(" ");

/** A small number as a word. @param {number} n */
export const inWords = (n) => WORDS[n] ?? count(n);

/** @param {string} text */
export const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

/** @param {string|null|undefined} time */
export function ago(time) {
  const seconds = time ? (Date.now() - Date.parse(time)) / 1000 : NaN;
  if (!Number.isFinite(seconds)) return "–";
  for (const [unit, size] of /** @type {[string, number][]} */ ([
    ["d", 86400],
    ["h", 3600],
    ["min", 60],
  ])) {
    if (seconds >= size) return `${Math.floor(seconds / size)} ${unit} ago`;
  }
  return seconds < 3 ? "just now" : `${Math.floor(seconds)} s ago`;
}

/** @param {string} state */
export const sign = (state) => SIGNS[/** @type {keyof typeof SIGNS} */ (state)] ?? "";

/** An anomaly is complete at once: its kind says it all. @param {any} event */
export const standing = (event) => (event.kind === "anomaly" ? "anomaly" : event.state);

/** @param {number} n @param {string} one @param {string} [many] */
export const plural = (n, one, many) => `${count(n)} ${n === 1 ? one : (many ?? `${one}s`)}`;

const ABSENT = {
  hazard: "learned, or the model’s",
  outlier_rate: "the model’s",
  location: "from the warm-up",
  scale: "from the warm-up",
};

/** @param {any} value of any type @param {string} [name] of a stream's setting */
export function setting(value, name = "") {
  if (value === null || value === undefined)
    return ABSENT[/** @type {keyof typeof ABSENT} */ (name)] ?? "none";
  if (typeof value === "object") return JSON.stringify(value);
  return typeof value === "number" ? number(value, 6) : String(value);
}
