// The reference of the REST interface, in this page's frame: Swagger UI, from the service itself.

import { address, headers } from "./api.js";
import { fill, h } from "./dom.js";
import { problem } from "./problems.js";

let loading = /** @type {Promise<any>|null} */ (null);

/** @returns {Promise<any>} */
function swagger() {
  loading ??= new Promise((resolve, reject) => {
    document.head.append(
      h("link", { rel: "stylesheet", href: "docs/static/swagger-ui.css" }),
      h("script", {
        src: "docs/static/swagger-ui-bundle.js",
        load: () => resolve(/** @type {any} */ (window).SwaggerUIBundle),
        error: () => reject(new Error("the reference failed to load")),
      }),
    );
  });
  return loading;
}

/** @param {HTMLElement} main @param {import("./events.js").Feed} feed @returns {import("./main.js").View} */
export function showReference(main, feed) {
  feed.pause();
  let closed = false;
  const place = h("div", { class: "reference" }, h("p", { class: "empty" }, "Loading."));
  const other = h("p", {}, "Also as ", h("a", { href: "openapi.json" }, "openapi.json"), " and on ", h("a", { href: "docs" }, "a page of its own"), ".");
  fill(main, h("div", { class: "head" }, h("div", {}, h("h1", {}, "REST interface"), other)), h("h2", { class: "unseen" }, "Calls"), place);
  swagger()
    .then((bundle) => {
      if (closed) return;
      bundle({
        url: address("openapi.json").href,
        domNode: place,
        deepLinking: false, // this page has the part of the address after #
        docExpansion: "list",
        defaultModelsExpandDepth: -1,
        requestInterceptor: (/** @type {any} */ request) => {
          Object.assign(request.headers, headers());
          return request;
        },
      });
    })
    .catch((error) => fill(place, problem(error)));
  return {
    title: "REST interface",
    nav: "api",
    close() {
      closed = true;
    },
  };
}
