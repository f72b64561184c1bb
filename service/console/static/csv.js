// A CSV file as streams: each numeric column one, or those that a column `stream` names.

const MOST_BYTES = 5e6;
const MOST_STREAMS = 50;
const MOST_ROWS = 50000;
const TIMES = ["time", "timestamp", "date", "datetime"];
const LABELS = ["y", "value", "label"];
const ZONE = /(Z|[+-]\d\d:?\d\d)$/i;

/** A file that cannot become streams; the message says what to do. */
export class BadFile extends Error {}

/** @typedef {Map<string, {y: number|null, time?: string}[]>} Streams observations by id, in order */

/** @param {File} file @returns {Promise<Streams>} */
export async function streamsOf(file) {
  if (file.size > MOST_BYTES)
    throw new BadFile(
      `The file has ${(file.size / 1e6).toFixed(1)} MB, and at most ${MOST_BYTES / 1e6} MB can be read here: use “moca observe”.`,
    );
  const rows = parse(await file.text());
  if (rows.length < 2) throw new BadFile("Expected a line of column names and at least one line of numbers.");
  if (rows.length > MOST_ROWS + 1)
    throw new BadFile(`The file has more than ${MOST_ROWS.toLocaleString("en")} lines: use “moca observe”.`);
  return columnsOf(rows, file.name.replace(/\.[^.]*$/, ""));
}

/** @param {string[][]} rows names first @param {string} stem of ids @returns {Streams} */
function columnsOf(rows, stem) {
  const names = rows[0].map((name) => name.trim());
  const lines = rows.slice(1);
  lines.forEach((line, i) => {
    if (line.length !== names.length)
      throw new BadFile(`Line ${i + 2} has ${line.length} cells, and the first line ${names.length} names.`);
  });
  const lower = names.map((name) => name.toLowerCase());
  const time = lower.findIndex((name) => TIMES.includes(name));
  const stream = lower.indexOf("stream");
  const numeric = names.map((_, i) => i).filter((i) => i !== time && i !== stream && isNumeric(lines, i));
  if (!numeric.length)
    throw new BadFile(`No column has only numbers, among ${names.join(", ")}. Decimals are written with a point.`);
  const named = /** @type {Streams} */ (new Map());
  const add = (/** @type {string} */ id, /** @type {string[]} */ line, /** @type {number} */ column, /** @type {number} */ i) => {
    if (!named.has(id)) named.set(id, []);
    const y = line[column].trim() === "" ? null : Number(line[column]);
    named.get(id)?.push(time < 0 ? { y } : { y, time: timeOf(line[time], i + 2) });
  };
  if (stream < 0) {
    const ids = numeric.map((column) => idOf(`${stem}.${names[column]}`));
    const twice = ids.findIndex((id, i) => ids.indexOf(id) < i);
    if (twice >= 0)
      throw new BadFile(`Two columns would be the stream ${ids[twice]}: rename one of them, in letters and digits.`);
    for (const column of numeric)
      lines.forEach((line, i) => add(idOf(`${stem}.${names[column]}`), line, column, i));
  } else {
    const column = numeric.length === 1 ? numeric[0] : numeric.find((i) => LABELS.includes(lower[i]));
    if (column === undefined)
      throw new BadFile(
        `Beside “stream” expected one column of numbers, or one that is called ${LABELS.join(", ")}; got ${numeric.map((i) => names[i]).join(", ")}.`,
      );
    lines.forEach((line, i) => add(idOf(line[stream].trim(), i + 2), line, column, i));
  }
  if (named.size > MOST_STREAMS)
    throw new BadFile(`The file has ${named.size} streams, and at most ${MOST_STREAMS} can be made here: use “moca observe”.`);
  return named;
}

/** @param {string[][]} lines @param {number} column */
function isNumeric(lines, column) {
  const cells = lines.map((line) => line[column].trim()).filter((cell) => cell !== "");
  return cells.length > 0 && cells.every((cell) => Number.isFinite(Number(cell)));
}

/** @param {string} name @param {number} [line] of which it is the stream */
function idOf(name, line) {
  const id = line ? name : name.replace(/[^A-Za-z0-9._:@~-]+/g, "-");
  if (!/^[A-Za-z0-9._:@~-]{1,200}$/.test(id) || /^\.\.?$/.test(id))
    throw new BadFile(
      `${line ? `Line ${line}` : "A column"}: expected an id of letters, digits and . _ : @ ~ -, got “${name}”.`,
    );
  return id;
}

/** A time as the service takes it; without a zone it is UTC. @param {string} cell @param {number} line */
function timeOf(cell, line) {
  const text = cell.trim().replace(" ", "T");
  const whole = text.length === 10 || ZONE.test(text) ? text : `${text}Z`;
  const at = new Date(whole);
  if (!/^\d{4}-\d\d-\d\d/.test(text) || Number.isNaN(at.getTime()))
    throw new BadFile(`Line ${line}: expected a time such as 2024-05-01 12:00:00, got “${cell}”.`);
  return at.toISOString();
}

/** Cells of each line that is not empty; quotes as in RFC 4180. @param {string} text @returns {string[][]} */
function parse(text) {
  const head = text.slice(0, text.search(/[\r\n]|$/));
  const separator = [";", "\t", ","].find((each) => head.includes(each)) ?? ",";
  const rows = /** @type {string[][]} */ ([]);
  let row = /** @type {string[]} */ ([]),
    cell = "",
    quoted = false;
  const end = () => {
    row.push(cell);
    if (row.length > 1 || cell.trim()) rows.push(row);
    row = [];
    cell = "";
  };
  for (let i = text.charCodeAt(0) === 0xfeff ? 1 : 0; i < text.length; i++) {
    const letter = text[i];
    if (quoted && letter === '"' && text[i + 1] === '"') cell += text[++i];
    else if (letter === '"') quoted = !quoted;
    else if (quoted) cell += letter;
    else if (letter === separator) {
      row.push(cell);
      cell = "";
    } else if (letter === "\n") end();
    else if (letter !== "\r") cell += letter;
  }
  if (quoted) throw new BadFile("A quotation mark is not closed.");
  if (cell || row.length) end();
  return rows;
}
