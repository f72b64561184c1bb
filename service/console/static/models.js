// Models: what there is to choose from, and what is known of one.

import { get } from "./api.js";
import { fill, h, marked, pairs, section, table } from "./dom.js";
import { number, percent, plural, setting } from "./format.js";
import { problem } from "./problems.js";
import { reportParts } from "./report.js";

/**
 * @param {HTMLElement} main @param {import("./events.js").Feed} feed
 * @returns {import("./main.js").View}
 */
export function showModels(main, feed) {
  const place = h("div", {}, h("p", { class: "empty" }, "Loading."));
  fill(main, h("div", { class: "head" }, h("h1", {}, "Models")), place);
  feed.pause(); // nothing here changes by events
  const read = async () => {
    try {
      const { models } = await get("v1/models");
      fill(
        place,
        h(
          "div",
          { class: "section models" },
          table(
            "Models available to streams",
            ["Model", "Description", "Kind", "Inputs", "Labels", "Hazard", "Versions"],
            models.map((/** @type {any} */ each) => [
              h("a", { href: `#/models/${encodeURIComponent(each.name)}` }, each.name),
              each.error
                ? h("span", { class: "bad" }, `not usable: ${each.error}`)
                : marked(each.description),
              [
                each.kind,
                each.built_in
                  ? h("span", { class: "note block" }, "built in")
                  : h("span", { class: "note block" }, "trained"),
              ],
              each.x_dim ?? "any",
              each.y_dim ?? "any",
              hazard(each),
              each.versions.join(", "),
            ]),
            { unseenCaption: true },
          ),
        ),
      );
    } catch (error) {
      fill(place, problem(error, read));
    }
  };
  read();
  return { title: "Models", nav: "models", close() {} };
}

/**
 * @param {HTMLElement} main @param {string} name @param {import("./events.js").Feed} feed
 * @returns {import("./main.js").View}
 */
export function showModel(main, name, feed) {
  const place = h("div", {}, h("p", { class: "empty" }, "Loading."));
  const charts = /** @type {import("./chart.js").Chart[]} */ ([]);
  let closed = false;
  fill(
    main,
    h("p", { class: "crumb" }, h("a", { href: "#/models" }, "Models"), " /"),
    h("div", { class: "head" }, h("h1", {}, name)),
    place,
  );
  feed.pause(); // nothing here changes by events

  async function read() {
    try {
      const model = await get(`v1/models/${encodeURIComponent(name)}`);
      if (!closed) draw(model, model.versions[model.versions.length - 1].version);
    } catch (error) {
      if (!closed) fill(place, problem(error, read));
    }
  }

  /** @param {any} model @param {string} chosen */
  function draw(model, chosen) {
    charts.splice(0).forEach((chart) => chart.close());
    const version = model.versions.find((/** @type {any} */ each) => each.version === chosen);
    fill(
      place,
      about(model, version, (other) => draw(model, other)),
      version.report
        ? reportParts(version.report, charts)
        : version.training
          ? summaryOf(version.training)
          : null,
    );
    charts.forEach((chart) => chart.draw());
  }
  read();
  return {
    title: name,
    nav: "models",
    close() {
      closed = true;
      charts.forEach((chart) => chart.close());
    },
  };
}

/** Streams learn a hazard that is not stated. @param {any} version */
const hazard = (version) => (version.hazard === null ? "learned" : setting(version.hazard));

/** @param {any} model @param {any} version @param {(version: string) => void} choose */
function about(model, version, choose) {
  const rows = [
    ["Reference", h("code", {}, version.version ? `${model.name}@${version.version}` : model.name)],
    ["Kind", version.kind],
    ["Inputs", version.x_dim ?? "any"],
    ["Outputs", version.y_dim ?? "any"],
    ["Hazard", hazard(version)],
  ];
  if (version.encoder)
    rows.push(["Encoder", `${version.encoder.type} ${(version.encoder.layers ?? []).join(" → ")}`]);
  if (version.feature_dim) rows.push(["Features", number(version.feature_dim)]);
  if (version.regimes)
    rows.push([
      "Typical regimes",
      version.regimes
        .map((/** @type {any} */ each) => `${each.name}, ${percent(each.probability)}`)
        .join("; "),
    ]);
  if (version.error) rows.push(["Error", h("span", { class: "bad" }, version.error)]);
  const select = h(
    "select",
    { id: "version", change: () => choose(/** @type {HTMLSelectElement} */ (select).value) },
    model.versions.map((/** @type {any} */ each) =>
      h("option", { value: each.version, selected: each === version }, each.version),
    ),
  );
  return section(
    "About",
    h("p", {}, marked(version.description || model.description)),
    model.versions.length > 1
      ? h(
          "div",
          { class: "buttons" },
          h("label", { for: "version" }, "Version"),
          select,
          h("span", { class: "note" }, plural(model.versions.length, "version")),
        )
      : null,
    pairs(rows),
  );
}

/** @param {any} training as model.json has it, where there is no report */
function summaryOf(training) {
  return section(
    "Training",
    pairs(Object.entries(training).map(([key, value]) => [key, setting(value)])),
  );
}
