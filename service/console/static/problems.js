// What went wrong, as the service says it.

import { reconsider, retryMs } from "./api.js";
import { h } from "./dom.js";

/**
 * A problem document in words, with a button where it is worth trying again.
 * @param {any} error @param {() => void} [again]
 */
export function problem(error, again) {
  const found = error.problem ?? {
    title: "Internal error of the console",
    detail: String(error?.message ?? error),
  };
  const fields = (found.errors ?? []).map((/** @type {any} */ each) =>
    h("li", {}, h("code", {}, each.loc), ` ${each.detail}`),
  );
  const kind = typeof found.type === "string" ? found.type.split("/").pop() : "";
  const small = [
    error.status ? `status ${error.status}` : "",
    kind,
    found.request_id ? `request ${found.request_id}` : "",
  ]
    .filter(Boolean)
    .join(" · ");
  return h(
    "div",
    { class: "problem", role: "alert" },
    h("strong", {}, found.title ?? "Problem"),
    h("p", {}, found.detail ?? ""),
    fields.length ? h("ul", {}, fields) : null,
    small ? h("p", { class: "note" }, small) : null,
    again
      ? h("button", { type: "button", click: () => (reconsider(), again()) }, "Try again")
      : null,
  );
}

/**
 * Call again and again, in turn, while the page is looked at; slower when it fails.
 * @param {() => Promise<void>} ask @param {number} everyMs
 * @param {(error: any|null) => void} onError null: all is well again
 * @returns {{now: () => void, stop: () => void}}
 */
export function poll(ask, everyMs, onError) {
  let stopped = false,
    timer = 0,
    pause = everyMs,
    failing = false,
    running = false,
    again = false;
  async function turn() {
    if (stopped) return;
    if (running) {
      again = true;
      return;
    }
    running = true;
    window.clearTimeout(timer);
    try {
      if (!document.hidden) await ask();
      if (failing && !stopped) onError(null);
      failing = false;
      pause = everyMs;
    } catch (error) {
      if (stopped) return;
      failing = true;
      onError(error);
      pause = Math.max(Math.min(2 * pause, 30000), retryMs(error));
    } finally {
      running = false;
      if (!stopped) timer = window.setTimeout(turn, again ? 0 : pause);
      again = false;
    }
  }
  turn();
  return {
    now: () => void turn(),
    stop: () => {
      stopped = true;
      window.clearTimeout(timer);
    },
  };
}
