// The controls above the image: they show the state and change it.

import { element, option } from "./element";
import type { Results } from "./server";
import type { Scale, Store } from "./state";

export class Toolbar {
  private readonly heat = element<HTMLButtonElement>("heat");
  private readonly opacity = element<HTMLInputElement>("opacity");
  private readonly scoreClass = element<HTMLSelectElement>("score-class");
  private readonly usual = option("", "");
  private readonly scale = element<HTMLSelectElement>("scale");
  private readonly truth = element<HTMLButtonElement>("truth");
  private readonly compare = element<HTMLButtonElement>("compare");

  constructor(
    results: Results,
    private readonly store: Store,
    fit: () => void,
  ) {
    this.scoreClass.append(this.usual);
    this.scoreClass.append(...results.classes.map((name) => option(name, `for ${name}`)));
    this.compare.disabled = results.models.length < 2;
    if (this.compare.disabled) this.compare.title = "There is only one model to look at";
    element("fit").addEventListener("click", fit);
    this.listen();
    store.onChange(() => this.render());
    this.render();
  }

  /** Say which layers the slide has; what it has not cannot be chosen. */
  allow(has: { scores: boolean; classScores: boolean; truth: boolean }): void {
    this.heat.disabled = this.opacity.disabled = this.scale.disabled = !has.scores;
    this.scoreClass.disabled = !has.classScores;
    this.scoreClass.title = has.classScores ? "" : "This model gives no scores by class here";
    this.usual.textContent = has.classScores ? "predicted class" : "one for all";
    this.truth.disabled = !has.truth;
    this.truth.title = has.truth ? "Show or hide the ground truth (t)" : "No ground truth is known";
  }

  private listen(): void {
    const { store } = this;
    this.heat.addEventListener("click", () => store.change({ heat: !store.now.heat }));
    this.truth.addEventListener("click", () => store.change({ truth: !store.now.truth }));
    this.compare.addEventListener("click", () =>
      store.change({ compare: !store.now.compare, active: 0 }),
    );
    this.opacity.addEventListener("input", () =>
      store.change({ opacity: this.opacity.valueAsNumber, heat: true }),
    );
    this.scoreClass.addEventListener("input", () =>
      store.change({ scoreClass: this.scoreClass.value }),
    );
    this.scale.addEventListener("input", () => store.change({ scale: this.scale.value as Scale }));
  }

  private render(): void {
    const { heat, truth, compare, opacity, scoreClass, scale } = this.store.now;
    this.heat.setAttribute("aria-pressed", String(heat));
    this.truth.setAttribute("aria-pressed", String(truth));
    this.compare.setAttribute("aria-pressed", String(compare));
    this.opacity.valueAsNumber = opacity;
    element("opacity-shown").textContent = `${Math.round(100 * opacity)} %`;
    this.scoreClass.value = scoreClass;
    this.scale.value = scale;
  }
}
