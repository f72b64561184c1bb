// Calls that are made again and again, or because something came.

import { retryMs } from "./api.js";

const FIRST_MS = 1000;
const LONGEST_MS = 30000;

/**
 * Call on request, one call at a time; requests meanwhile are one more call. One that fails is made
 * again, later and later.
 * @param {() => Promise<void>} act
 * @param {{apartMs?: number, everyMs?: number}} when apartMs: least time between calls; everyMs: it is
 * also called by itself, at first and then so often, while the page is looked at
 * @param {(error: any|null) => void} onError null: all is well again
 * @returns {{ask: () => void, now: () => void, stop: () => void}} now: at once
 */
export function soon(act, { apartMs = 0, everyMs = 0 }, onError) {
  const first = everyMs || FIRST_MS;
  let stopped = false,
    running = false,
    wanted = false,
    atOnce = false,
    failing = false,
    timer = 0,
    last = -Infinity,
    pause = first;
  function plan(/** @type {number} */ ms) {
    window.clearTimeout(timer);
    if (!stopped) timer = window.setTimeout(run, ms);
  }
  async function run() {
    running = true;
    wanted = atOnce = false;
    last = performance.now();
    let next = everyMs;
    try {
      if (!everyMs || !document.hidden) await act();
      if (failing && !stopped) onError(null);
      failing = false;
      pause = first;
    } catch (error) {
      if (stopped) return;
      failing = true;
      onError(error);
      next = Math.max(pause, retryMs(error));
      pause = Math.min(2 * pause, LONGEST_MS);
    } finally {
      running = false;
      if (next) plan(next);
      if (wanted) ask();
    }
  }
  function ask() {
    wanted = true;
    if (running || (failing && !atOnce)) return;
    plan(atOnce ? 0 : Math.max(0, last + apartMs - performance.now()));
  }
  function now() {
    atOnce = true;
    ask();
  }
  if (everyMs) now();
  return {
    ask,
    now,
    stop: () => {
      stopped = true;
      window.clearTimeout(timer);
    },
  };
}

/** A call that is made once nobody has asked for it for a while, as while somebody types. @param {() => void} act @param {number} ms */
export function later(act, ms) {
  let timer = 0;
  const stop = () => window.clearTimeout(timer);
  const ask = () => {
    stop();
    timer = window.setTimeout(act, ms);
  };
  return { ask, stop };
}
