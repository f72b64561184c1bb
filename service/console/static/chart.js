// Plotting code, loaded when a page first needs it; a figure that says in words what it shows.

import { fill, h } from "./dom.js";
import { colour, onTheme } from "./theme.js";

const NAME = document.querySelector("meta[name=moca-plotly]")?.getAttribute("content") ?? "";
const CONFIG = { displayModeBar: false, responsive: true, scrollZoom: false, doubleClick: "reset" };
let loading = /** @type {Promise<any>|null} */ (null);

/** @returns {Promise<any>} Plotly; rejected where the service has none */
function plotly() {
  loading ??= new Promise((resolve, reject) => {
    if (!NAME) {
      reject(new Error("not installed"));
      return;
    }
    const script = h("script", {
      src: `console/${NAME}`,
      load: () => resolve(/** @type {any} */ (window).Plotly),
      error: () => reject(new Error("the plotting code failed to load")),
    });
    document.head.append(script);
  });
  return loading;
}

/** @param {Record<string, any>} [more] a layout in the page's colours */
export function layout(more = {}) {
  const line = {
    gridcolor: colour("line"),
    zeroline: false,
    linecolor: colour("line"),
    automargin: true,
  };
  const axes = Object.fromEntries(
    Object.entries(more)
      .filter(([name]) => /^[xy]axis\d*$/.test(name))
      .map(([name, axis]) => [name, { ...line, ...axis }]),
  );
  return {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, sans-serif", size: 12, color: colour("quiet") },
    margin: { l: 54, r: 16, t: 24, b: 36 },
    hoverlabel: {
      bgcolor: colour("page"),
      bordercolor: colour("line"),
      font: { color: colour("ink") },
    },
    legend: {
      orientation: "h",
      x: 0,
      y: 1.02,
      yanchor: "bottom",
      traceorder: "normal",
      font: { color: colour("ink") },
    },
    ...more,
    ...axes,
  };
}

/** A figure that is drawn again whenever its data or the page's colours change. */
export class Chart {
  /** @param {string} title @param {() => {data: any[], layout: any, says: string}} drawing */
  constructor(title, drawing) {
    this.drawing = drawing;
    this.box = h("div", { class: "plot", role: "img", "aria-label": title });
    this.element = h("figure", { class: "chart" }, this.box);
    this.closed = this.busy = this.again = false;
    this.unfollow = onTheme(() => this.draw());
    this.plotly = /** @type {any} */ (null);
    this.onZoom = (/** @type {[number, number]|null} */ _) => {}; // of the horizontal axis; null: all of it
  }

  /** @param {string} title */
  label(title) {
    this.box.setAttribute("aria-label", title);
  }

  /** Draw what there is now; what comes while it is drawn is drawn once more. */
  async draw() {
    this.again = this.busy;
    if (this.busy || this.closed) return;
    this.busy = true;
    try {
      this.plotly = await plotly();
      if (!this.closed) await this.render();
    } catch (error) {
      fill(this.box, h("p", { class: "empty" }, missing(error)));
    }
    this.busy = false;
    if (this.again) this.draw();
  }

  async render() {
    const { data, layout: wanted, says } = this.drawing();
    this.label(says);
    const begun = this.box.classList.contains("js-plotly-plot");
    await this.plotly.react(this.box, data, wanted, CONFIG);
    if (!begun) /** @type {any} */ (this.box).on("plotly_relayout", (/** @type {any} */ news) => this.zoomed(news));
    this.box.dataset.drawn = String(Number(this.box.dataset.drawn ?? 0) + 1);
  }

  /** @param {any} news what somebody changed of the layout */
  zoomed(news) {
    if (news["xaxis.autorange"]) this.onZoom(null);
    else if ("xaxis.range[0]" in news) this.onZoom([news["xaxis.range[0]"], news["xaxis.range[1]"]]);
  }

  get width() {
    return this.box.clientWidth;
  }

  close() {
    this.closed = true;
    this.unfollow();
    if (this.plotly) this.plotly.purge(this.box);
  }
}

/** @param {any} error */
function missing(error) {
  return error?.message === "not installed"
    ? "Charts need the Python package “plotly”: install moca-service[console] on the API host and restart the API. The tables below show the same data."
    : `Cannot draw the chart: ${error?.message ?? error}. The tables below show the same data.`;
}
