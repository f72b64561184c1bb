// Keys of all pages: j and k go through rows, / finds a stream, f opens the filter, escape closes it.

const TYPED = "input:not([type=range]), select, textarea";

/** @param {() => void} find what `/` does */
export function setUpKeys(find) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (document.querySelector("dialog[open]")) return;
    const within = event.target instanceof HTMLElement ? event.target : document.body;
    if (event.key === "Escape") {
      if (closeFilter()) event.preventDefault();
      return;
    }
    if (within.matches(TYPED)) return;
    const act = { j: () => step(1), k: () => step(-1), "/": find, f: toggleFilter }[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });
}

/** Focus the next row, or the one before; the first if there is none yet. @param {number} by */
function step(by) {
  const rows = /** @type {HTMLElement[]} */ ([...document.querySelectorAll("main .row-link")]);
  if (!rows.length) return;
  const at = rows.findIndex((row) => row.closest("li, tr")?.contains(document.activeElement));
  const row = rows[at < 0 ? 0 : Math.min(rows.length - 1, Math.max(0, at + by))];
  row.focus();
  row.closest("li, tr")?.scrollIntoView({ block: "nearest" });
}

function toggleFilter() {
  const filter = /** @type {HTMLDetailsElement|null} */ (document.querySelector("details.filter"));
  if (!filter) return;
  if (filter.open) closeFilter();
  else {
    filter.open = true;
    /** @type {HTMLElement|null} */ (filter.querySelector("select, input"))?.focus();
  }
}

/** Whether there was a filter to close. */
function closeFilter() {
  const filter = /** @type {HTMLDetailsElement|null} */ (document.querySelector("details.filter[open]"));
  if (!filter) return false;
  filter.open = false;
  filter.querySelector("summary")?.focus();
  return true;
}
