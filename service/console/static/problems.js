// What went wrong, as the service says it.

import { reconsider } from "./api.js";
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
