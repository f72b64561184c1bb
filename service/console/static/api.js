// Calls of the REST interface, with a key where the service wants one.

import { byId } from "./dom.js";

const KEY = "moca-key";
const PLACE = new URL(".", document.baseURI);

/** An error response of the service. */
export class ProblemError extends Error {
  /** @param {any} problem @param {number} status @param {number} [retryS] */
  constructor(problem, status, retryS = 0) {
    super(problem.detail || problem.title);
    this.problem = problem;
    this.status = status;
    this.retryS = retryS;
  }
}

/** How long to leave the service alone after an error. @param {any} error */
export const retryMs = (error) => 1000 * (error?.retryS || 0);

/** @param {string} path @param {Record<string, any>} [query] lists are repeated */
export function address(path, query = {}) {
  const url = new URL(path, PLACE);
  for (const [name, value] of Object.entries(query)) {
    if (value === null || value === undefined || value === "") continue;
    for (const each of [value].flat()) url.searchParams.append(name, String(each));
  }
  return url;
}

/** @param {Record<string, string>} [more] */
export function headers(more = {}) {
  const key = sessionStorage.getItem(KEY);
  return key ? { ...more, Authorization: `Bearer ${key}` } : more;
}

/**
 * Fetch, asking for a key as often as the service wants another.
 * @param {URL} url @param {RequestInit & {headers?: Record<string, string>}} [init]
 * @returns {Promise<Response>}
 */
export async function request(url, init = {}) {
  for (;;) {
    const sent = headers(init.headers);
    let response;
    try {
      response = await fetch(url, {
        ...init,
        headers: sent,
        cache: "no-store",
        credentials: "omit",
      });
    } catch (error) {
      if (init.signal?.aborted) throw error;
      const detail = "No response, or the connection was lost. Retrying.";
      throw new ProblemError({ title: "Service unreachable", detail }, 0);
    }
    if (response.ok) return response;
    const error = await refused(response);
    if (response.status !== 401 || !(await askForKey(error.message, sent.Authorization)))
      throw error;
  }
}

/** @param {Response} response */
async function refused(response) {
  const retryS = Number(response.headers.get("Retry-After")) || 0;
  let problem;
  try {
    problem = await response.json();
  } catch {
    problem = { title: `Status ${response.status}`, detail: "The response is not a problem document." };
  }
  problem.request_id ??= response.headers.get("X-Request-Id");
  return new ProblemError(problem, response.status, retryS);
}

/**
 * @param {string} path @param {Record<string, any>} [query] @param {AbortSignal} [signal]
 * @returns {Promise<any>}
 */
export async function get(path, query, signal) {
  return (await request(address(path, query), { signal })).json();
}

/** @param {string} method @param {string} path @param {any} body @returns {Promise<any>} */
export async function send(method, path, body) {
  const type = { "Content-Type": "application/json" };
  const init = { method, headers: type, body: JSON.stringify(body) };
  return (await request(address(path), init)).json();
}

/** @param {string} stream @param {string} [rest] */
export const pathOf = (stream, rest = "") => `v1/streams/${encodeURIComponent(stream)}${rest}`;

let asking = /** @type {Promise<boolean>|null} */ (null);
let declined = false;

/** Whether another key was entered; concurrent callers share one dialog. */
async function askForKey(/** @type {string} */ why, /** @type {string|undefined} */ used) {
  const present = headers().Authorization;
  if (present && present !== used) return true; // another call asked meanwhile
  if (declined) return false;
  asking ??= dialog(why).finally(() => (asking = null));
  return asking;
}

/** Ask again, even if that was declined before. */
export function reconsider() {
  declined = false;
}

export function forgetKey() {
  sessionStorage.removeItem(KEY);
  declined = false;
}

export const hasKey = () => sessionStorage.getItem(KEY) !== null;

/** @param {string} why @returns {Promise<boolean>} */
function dialog(why) {
  const box = byId("ask"),
    form = byId("ask-form"),
    input = byId("ask-key");
  byId("ask-why").textContent = why;
  input.value = "";
  input.setAttribute("aria-invalid", String(hasKey()));
  return new Promise((resolve) => {
    const end = (/** @type {boolean} */ given) => {
      form.onsubmit = box.oncancel = byId("ask-cancel").onclick = null;
      declined = !given;
      box.close();
      byId("key").hidden = !hasKey();
      resolve(given);
    };
    form.onsubmit = (/** @type {Event} */ event) => {
      event.preventDefault();
      sessionStorage.setItem(KEY, input.value.trim());
      end(true);
    };
    byId("ask-cancel").onclick = () => end(false);
    box.oncancel = () => end(false);
    box.showModal();
    input.focus();
  });
}
