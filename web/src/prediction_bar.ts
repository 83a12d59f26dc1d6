// A model's prediction for a slide: the probability of each class, the highest first.

import { makeElement } from "./element";
import { formatPercent } from "./format";
import { findPrediction, type Results, type Slide } from "./server";

const MAX_CLASSES = 3;

export function makePredictionBar(results: Results, slide: Slide, model: number): HTMLElement {
  const root = makeElement("ul", "prediction-bar");
  const prediction = findPrediction(slide, model);
  if (!prediction) {
    root.append(makeElement("li", "", "no prediction for this slide"));
    return root;
  }
  const ranked = results.classes
    .map((name, at) => {
      return { name, share: prediction.probabilities[at] ?? 0, spread: prediction.spread?.[at] };
    })
    .sort((one, other) => other.share - one.share);
  for (const { name, share, spread } of ranked.slice(0, MAX_CLASSES)) {
    const item = makeElement("li", name === prediction.predicted ? "predicted" : "");
    const around = spread ? ` ± ${(100 * spread).toFixed(1)}` : "";
    item.append(makeElement("b", "", name), makeProbabilityBar(share));
    item.append(makeElement("span", "", formatPercent(share) + around));
    root.append(item);
  }
  const more = ranked.length - MAX_CLASSES;
  if (more > 0) root.append(makeElement("li", "", `and ${more} more`));
  root.title = ranked.map(({ name, share }) => `${name}: ${formatPercent(share)}`).join("\n");
  return root;
}

/** A small bar as long as a probability. */
export function makeProbabilityBar(share: number): HTMLElement {
  const frame = makeElement("span", "bar");
  const filled = makeElement("i");
  filled.style.width = `${100 * share}%`;
  frame.append(filled);
  return frame;
}
