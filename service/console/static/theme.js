// Light, dark, or as the system has it.

const PLACE = "moca-theme";
const ORDER = ["auto", "light", "dark"];
const listeners = /** @type {Set<() => void>} */ (new Set());

function chosen() {
  const kept = localStorage.getItem(PLACE) ?? "auto";
  return ORDER.includes(kept) ? kept : "auto";
}

/** @param {NodeListOf<HTMLElement>} buttons that change it */
export function setUpTheme(buttons) {
  const apply = () => {
    document.documentElement.dataset.theme = chosen();
    for (const button of buttons) {
      button.setAttribute("aria-label", `Theme: ${chosen()}`);
      button.title = `Theme: ${chosen()}`;
    }
    listeners.forEach((listener) => listener());
  };
  const next = () => {
    localStorage.setItem(PLACE, ORDER[(ORDER.indexOf(chosen()) + 1) % ORDER.length]);
    apply();
  };
  for (const button of buttons) button.addEventListener("click", next);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", apply);
  apply();
}

/** @param {() => void} listener @returns {() => void} what ends it */
export function onTheme(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

const probe = document.createElement("span");

/** A colour of the present theme, as plotting code takes it. @param {string} name of a custom property, without the dashes */
export function colour(name) {
  if (!probe.isConnected) document.documentElement.append(probe);
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}
