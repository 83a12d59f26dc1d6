// The state as the part of the address after #, so that a link leads to the very view.

import type { Results } from "./server";
import type { State, View } from "./state";

export interface Link {
  /** The slide it asks for, if there is none of that name here. */
  unknown: string | null;
  state: State;
  view: View | null;
}

export function writeLink(results: Results, state: Readonly<State>, view: View | null): string {
  const words = new URLSearchParams();
  words.set("slide", results.slides[state.slide]?.slide_id ?? "");
  const [first, second] = state.models.map((model) => results.models[model]?.name ?? "");
  words.set("model", first ?? "");
  if (state.compare) words.set("beside", second ?? "");
  if (state.scoreClass) words.set("class", state.scoreClass);
  words.set("scale", state.scale);
  words.set("opacity", state.opacity.toFixed(2));
  if (!state.heat) words.set("heat", "0");
  if (state.truth) words.set("truth", "1");
  if (view) words.set("view", [view.x, view.y, view.width].map(Math.round).join(","));
  return `#${words}`;
}

/** What a link says; whatever it does not say, or says wrongly, is as at the beginning. */
export function readLink(results: Results, hash: string): Link {
  const words = new URLSearchParams(hash.replace(/^#/, ""));
  const slide = results.slides.findIndex((slide) => slide.slide_id === words.get("slide"));
  const model = modelNamed(results, words.get("model"), 0);
  const opacity = Number.parseFloat(words.get("opacity") ?? "");
  const scoreClass = words.get("class") ?? "";
  return {
    unknown: slide < 0 ? words.get("slide") : null,
    state: {
      slide: Math.max(0, slide),
      models: [model, modelNamed(results, words.get("beside"), other(model, results))],
      active: 0,
      scoreClass: results.classes.includes(scoreClass) ? scoreClass : "",
      scale: words.get("scale") === "minmax" ? "minmax" : "rank",
      opacity: opacity >= 0 && opacity <= 1 ? opacity : 0.5,
      heat: words.get("heat") !== "0",
      truth: words.get("truth") === "1",
      compare: words.has("beside"),
    },
    view: slide < 0 ? null : readView(words.get("view")),
  };
}

function modelNamed(results: Results, name: string | null, fallback: number): number {
  const found = results.models.findIndex((model) => model.name === name);
  return found < 0 ? fallback : found;
}

function other(model: number, results: Results): number {
  return results.models.length > 1 && model === 0 ? 1 : 0;
}

function readView(words: string | null): View | null {
  const [x, y, width, ...rest] = (words ?? "").split(",").map(Number);
  if (x === undefined || y === undefined || width === undefined || rest.length) return null;
  return [x, y, width].every(Number.isFinite) && width > 0 ? { x, y, width } : null;
}
