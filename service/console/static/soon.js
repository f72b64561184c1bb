// Calls that are made because something came, not by the clock.

import { retryMs } from "./api.js";

const FIRST_MS = 1000;
const LONGEST_MS = 30000;

/**
 * Call on request, one at a time and rate-limited; requests in between are merged into one call.
 * One that fails is made again, later and later.
 * @param {() => Promise<void>} act @param {number} everyMs
 * @param {(error: any|null) => void} onError null: all is well again
 * @returns {{ask: () => void, stop: () => void}}
 */
export function soon(act, everyMs, onError) {
  let stopped = false,
    timer = 0,
    running = false,
    wanted = false,
    last = -Infinity,
    pause = FIRST_MS;
  async function run() {
    timer = 0;
    running = true;
    wanted = false;
    last = performance.now();
    try {
      await act();
      if (!stopped) onError(null);
      pause = FIRST_MS;
    } catch (error) {
      if (stopped) return;
      onError(error);
      timer = window.setTimeout(run, Math.max(pause, retryMs(error)));
      pause = Math.min(2 * pause, LONGEST_MS);
    } finally {
      running = false;
      if (wanted) ask();
    }
  }
  function ask() {
    wanted = true;
    if (running || timer || stopped) return;
    timer = window.setTimeout(run, Math.max(0, last + everyMs - performance.now()));
  }
  return {
    ask,
    stop: () => {
      stopped = true;
      window.clearTimeout(timer);
    },
  };
}
