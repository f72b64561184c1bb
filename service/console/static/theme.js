// Light, dark, or as the system has it.

const PLACE = "moca-theme";
const ORDER = ["auto", "light", "dark"];
const listeners = /** @type {Set<() => void>} */ (new Set());

function chosen() {
  const kept = localStorage.getItem(PLACE) ?? "auto";
  return ORDER.includes(kept) ? kept : "auto";
}

/** @param {HTMLElement} button */
export function setUpTheme(button) {
  const apply = () => {
    document.documentElement.dataset.theme = chosen();
    button.textContent = `Theme: ${chosen()}`;
    listeners.forEach((listener) => listener());
  };
  button.addEventListener("click", () => {
    localStorage.setItem(PLACE, ORDER[(ORDER.indexOf(chosen()) + 1) % ORDER.length]);
    apply();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", apply);
  apply();
}

/** @param {() => void} listener @returns {() => void} what ends it */
export function onTheme(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** @param {string} name of a custom property, without the dashes */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}
