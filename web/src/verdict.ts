// What a model says of a slide: the probability of every class, the highest first.

import { made } from "./element";
import { percent } from "./words";
import { answerOf, type Results, type Slide } from "./server";

const SHOWN = 3;

export function verdict(results: Results, slide: Slide, model: number): HTMLElement {
  const root = made("ul", "verdict");
  const answer = answerOf(slide, model);
  if (!answer) {
    root.append(made("li", "", "no answer for this slide"));
    return root;
  }
  const ranked = results.classes
    .map((name, at) => {
      return { name, share: answer.probabilities[at] ?? 0, spread: answer.spread?.[at] };
    })
    .sort((one, other) => other.share - one.share);
  for (const { name, share, spread } of ranked.slice(0, SHOWN)) {
    const item = made("li", name === answer.predicted ? "predicted" : "");
    const around = spread ? ` ± ${(100 * spread).toFixed(1)}` : "";
    item.append(made("b", "", name), bar(share), made("span", "", percent(share) + around));
    root.append(item);
  }
  if (ranked.length > SHOWN) root.append(made("li", "", `and ${ranked.length - SHOWN} more`));
  root.title = ranked.map(({ name, share }) => `${name}: ${percent(share)}`).join("\n");
  return root;
}

/** A small bar as long as a probability. */
export function bar(share: number): HTMLElement {
  const frame = made("span", "bar");
  const filled = made("i");
  filled.style.width = `${100 * share}%`;
  frame.append(filled);
  return frame;
}
