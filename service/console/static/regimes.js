// The regimes that a stream remembers: what each says of the next value, and what it is called.

import { get, pathOf, send } from "./api.js";
import { fill, h, table } from "./dom.js";
import { count, number, percent } from "./format.js";
import { one } from "./pictures.js";
import { problem } from "./problems.js";

const COLOURS = 8;
const LONGEST = 64; // name

/** Name of the colour of a regime. @param {number} id */
export const colourOf = (id) => `regime-${(id - 1) % COLOURS}`;

/** What a regime is called. @param {{id?: number|null, name?: string|null}} regime */
export const nameOf = (regime) => regime.name ?? `regime ${regime.id}`;

export class RegimeList {
  /** @param {string} stream @param {() => void} renamed what is to be done after one got a name */
  constructor(stream, renamed) {
    this.stream = stream;
    this.renamed = renamed;
    this.names = /** @type {Map<number, string|null>} */ (new Map());
    this.of = ""; // what the stream was like when the list was read
    this.output = 0;
    this.rows = h("div", {});
    this.trouble = h("div", { role: "status" });
    this.element = h("div", {}, this.rows, this.trouble);
  }

  /** Read the list, unless it was read for the same state or a name is being entered. @param {string} of @param {number} output */
  async refresh(of, output) {
    if (this.of === of || this.rows.contains(document.activeElement)) return;
    this.of = of;
    this.output = output;
    await this.read();
  }

  async read() {
    try {
      const { regimes } = await get(pathOf(this.stream, "/regimes"));
      fill(this.trouble);
      this.draw(regimes);
    } catch (error) {
      fill(
        this.trouble,
        problem(error, () => this.read()),
      );
    }
  }

  /** @param {any[]} regimes */
  draw(regimes) {
    this.names = new Map(regimes.map((each) => [each.id, each.name]));
    if (!regimes.length) {
      fill(this.rows, h("p", { class: "note" }, "No regime has ended yet."));
      return;
    }
    fill(
      this.rows,
      table(
        "Remembered regimes",
        ["Id", "Name", "Now", "Seen", "Last seen", "Mean", "SD"],
        regimes.map((each) => this.row(each)),
        { unseenCaption: true, numbers: [2, 3, 4, 5, 6] },
      ),
    );
    this.renamed();
  }

  /** @param {any} regime */
  row(regime) {
    const swatch = h("span", { class: "swatch" });
    swatch.style.background = `var(--${colourOf(regime.id)})`;
    const { mean, variance } = regime.predictive ?? {};
    const square = variance?.[this.output]?.[this.output] ?? null;
    return [
      [swatch, String(regime.id)],
      this.form(regime),
      percent(regime.probability),
      count(regime.seen),
      count(regime.last_seen),
      number(one(mean, this.output), 4),
      number(square === null ? null : Math.sqrt(square), 3),
    ];
  }

  /** @param {any} regime */
  form(regime) {
    const label = `Name of regime ${regime.id}`;
    const input = /** @type {HTMLInputElement} */ (
      h("input", { type: "text", "aria-label": label, maxlength: LONGEST, value: regime.name ?? "" })
    );
    return h(
      "form",
      {
        class: "buttons",
        submit: (/** @type {Event} */ event) => {
          event.preventDefault();
          this.save(regime, input.value.trim());
        },
      },
      input,
      h("button", { type: "submit", "aria-label": `Save the name of regime ${regime.id}` }, "Save"),
    );
  }

  /** @param {any} regime @param {string} name empty: none */
  async save(regime, name) {
    try {
      const named = await send("PUT", pathOf(this.stream, `/regimes/${regime.id}`), { name: name || null });
      this.names.set(named.id, named.name);
      fill(this.trouble, h("p", { class: "note" }, `Saved: ${nameOf(named)}.`));
      this.renamed();
    } catch (error) {
      fill(
        this.trouble,
        problem(error, () => this.save(regime, name)),
      );
    }
  }
}
