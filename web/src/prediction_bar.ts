// A model's prediction for a slide: every value, the most important first.

import { makeElement } from "./element";
import { formatNumber, formatPercent, formatWholePercent } from "./format";
import { findPrediction, type Choice, type Results, type Slide } from "./server";

const MAX_CLASSES = 3;
const MAX_VALUES = 8;

export function makePredictionBar(results: Results, slide: Slide, model: number): HTMLElement {
  const root = makeElement("ul", "prediction-bar");
  const prediction = findPrediction(slide, model);
  if (!prediction) {
    root.append(makeElement("li", "", "no prediction for this slide"));
    return root;
  }
  const { choices, headline, predicted } = prediction;
  const texts = choices.map(({ name, value }) => `${name} ${formatNumber(value)}`);
  // a headline that only repeats the values is left out, as is that of classes
  const hasHeadline = !results.has_classes && headline !== texts.join(", ");
  if (hasHeadline) root.append(makeElement("li", "headline", headline));
  const isShare = results.are_probabilities || results.are_percentages;
  const most = results.has_classes ? MAX_CLASSES : MAX_VALUES;
  for (const choice of choices.slice(0, most)) {
    const isPredicted = choice.name === predicted || (!isShare && !hasHeadline);
    const item = makeElement("li", isPredicted ? "predicted" : "");
    item.append(makeElement("b", "", choice.name));
    if (isShare) item.append(makeProbabilityBar(choice.value));
    item.append(makeElement("span", "", formatChoice(choice, results)));
    root.append(item);
  }
  const more = choices.length - most;
  if (more > 0) root.append(makeElement("li", "", `and ${more} more`));
  const lines = choices.map((choice) => `${choice.name}: ${formatChoice(choice, results)}`);
  root.title = lines.join("\n");
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

/** The value, with the standard deviation over the members of an ensemble. */
function formatChoice({ value, spread }: Choice, results: Results): string {
  if (results.are_percentages) {
    return formatWholePercent(value) + (spread ? ` ± ${formatWholePercent(spread)}` : "");
  }
  if (!results.are_probabilities) {
    return formatNumber(value) + (spread ? ` ± ${formatNumber(spread, 2)}` : "");
  }
  return formatPercent(value) + (spread ? ` ± ${(100 * spread).toFixed(1)}` : "");
}
