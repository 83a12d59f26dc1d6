// The controls above the image: they show the state and change it.

import { getElement, makeOption } from "./element";
import type { Results } from "./server";
import type { Scale, Store } from "./state";

export class Toolbar {
  private readonly heat = getElement<HTMLButtonElement>("heat");
  private readonly opacity = getElement<HTMLInputElement>("opacity");
  private readonly scoreClass = getElement<HTMLSelectElement>("score-class");
  private readonly defaultOption = makeOption("", "");
  private readonly scale = getElement<HTMLSelectElement>("scale");
  private readonly truth = getElement<HTMLButtonElement>("truth");
  private readonly compare = getElement<HTMLButtonElement>("compare");

  constructor(
    results: Results,
    private readonly store: Store,
    fit: () => void,
  ) {
    this.scoreClass.append(this.defaultOption);
    this.scoreClass.append(...results.classes.map((name) => makeOption(name, `for ${name}`)));
    this.compare.disabled = results.models.length < 2;
    if (this.compare.disabled) this.compare.title = "There is only one model";
    getElement("fit").addEventListener("click", fit);
    this.listen();
    store.onChange(() => this.render());
    this.render();
  }

  /** Enable the controls of the layers the slide has, and disable the others. */
  setAvailable(has: { scores: boolean; classScores: boolean; truth: boolean }): void {
    this.heat.disabled = this.opacity.disabled = this.scale.disabled = !has.scores;
    this.scoreClass.disabled = !has.classScores;
    this.scoreClass.title = has.classScores ? "" : "This model has no class scores for this slide";
    this.defaultOption.textContent = has.classScores ? "predicted class" : "all classes";
    this.truth.disabled = !has.truth;
    this.truth.title = has.truth
      ? "Show or hide the ground truth (t)"
      : "This slide has no ground truth";
  }

  private listen(): void {
    const { store } = this;
    this.heat.addEventListener("click", () => store.change({ heat: !store.current.heat }));
    this.truth.addEventListener("click", () => store.change({ truth: !store.current.truth }));
    this.compare.addEventListener("click", () =>
      store.change({ compare: !store.current.compare, active: 0 }),
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
    const { heat, truth, compare, opacity, scoreClass, scale } = this.store.current;
    this.heat.setAttribute("aria-pressed", String(heat));
    this.truth.setAttribute("aria-pressed", String(truth));
    this.compare.setAttribute("aria-pressed", String(compare));
    this.opacity.valueAsNumber = opacity;
    getElement("opacity-shown").textContent = `${Math.round(100 * opacity)} %`;
    this.scoreClass.value = scoreClass;
    this.scale.value = scale;
  }
}
