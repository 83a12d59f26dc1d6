// Writes the state after the # of the URL, so that a link leads to the same view.

import type { Results } from "./server";
import type { State, View } from "./state";

export interface Link {
  /** The requested slide, if these results do not have it. */
  unknownSlide: string | null;
  state: State;
  view: View | null;
}

export function writeLink(results: Results, state: Readonly<State>, view: View | null): string {
  const params = new URLSearchParams();
  params.set("slide", results.slides[state.slide]?.slide_id ?? "");
  const [first, second] = state.models.map((model) => results.models[model]?.name ?? "");
  params.set("model", first ?? "");
  if (state.compare) params.set("beside", second ?? "");
  if (state.scoreClass) params.set("class", state.scoreClass);
  params.set("scale", state.scale);
  params.set("opacity", state.opacity.toFixed(2));
  if (!state.heat) params.set("heat", "0");
  if (state.truth) params.set("truth", "1");
  if (view) params.set("view", [view.x, view.y, view.width].map(Math.round).join(","));
  return `#${params}`;
}

/** Read a link; missing and invalid values get their defaults. */
export function readLink(results: Results, hash: string): Link {
  const params = new URLSearchParams(hash.replace(/^#/, ""));
  const slide = results.slides.findIndex((slide) => slide.slide_id === params.get("slide"));
  const model = findModel(results, params.get("model"), 0);
  const opacity = Number.parseFloat(params.get("opacity") ?? "");
  const scoreClass = params.get("class") ?? "";
  return {
    unknownSlide: slide < 0 ? params.get("slide") : null,
    state: {
      slide: Math.max(0, slide),
      models: [model, findModel(results, params.get("beside"), otherModel(model, results))],
      active: 0,
      scoreClass: results.score_names.includes(scoreClass) ? scoreClass : "",
      scale: params.get("scale") === "minmax" ? "minmax" : "rank",
      opacity: opacity >= 0 && opacity <= 1 ? opacity : 0.5,
      heat: params.get("heat") !== "0",
      truth: params.get("truth") === "1",
      compare: params.has("beside"),
    },
    view: slide < 0 ? null : readView(params.get("view")),
  };
}

function findModel(results: Results, name: string | null, fallback: number): number {
  const found = results.models.findIndex((model) => model.name === name);
  return found < 0 ? fallback : found;
}

function otherModel(model: number, results: Results): number {
  return results.models.length > 1 && model === 0 ? 1 : 0;
}

function readView(text: string | null): View | null {
  const [x, y, width, ...rest] = (text ?? "").split(",").map(Number);
  if (x === undefined || y === undefined || width === undefined || rest.length) return null;
  return [x, y, width].every(Number.isFinite) && width > 0 ? { x, y, width } : null;
}
