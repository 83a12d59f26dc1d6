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
  private hasScale = true;

  constructor(
    private readonly results: Results,
    private readonly store: Store,
    fit: () => void,
  ) {
    this.scoreClass.append(this.defaultOption);
    this.scoreClass.append(...results.score_names.map((name) => makeOption(name, `for ${name}`)));
    this.scoreClass.parentElement!.hidden = results.score_names.length < 2;
    this.compare.disabled = results.models.length < 2;
    if (this.compare.disabled) this.compare.title = "There is only one model";
    getElement("fit").addEventListener("click", fit);
    this.listen();
    store.onChange(() => this.render());
    this.render();
  }

  /** Enable the controls of the layers the slide has, and disable the others. */
  setAvailable(has: {
    scores: boolean;
    classScores: boolean;
    /** Whether any colours depend on the scale. */
    scale: boolean;
    truth: boolean;
  }): void {
    const { has_classes, score_names_title } = this.results;
    const all = score_names_title.toLowerCase();
    this.heat.disabled = this.opacity.disabled = !has.scores;
    this.scale.disabled = !has.scores || !has.scale;
    this.hasScale = has.scale || !has.scores;
    this.scale.title = this.hasScale ? "" : "These scores add or take away: zero is always white";
    this.scoreClass.disabled = !has.classScores;
    const lacking = has_classes ? "no class scores" : `no scores for single ${all}`;
    this.scoreClass.title = has.classScores ? "" : `This model has ${lacking} for this slide`;
    const predicted = has_classes ? "predicted class" : "default";
    this.defaultOption.textContent = has.classScores ? predicted : `all ${all}`;
    this.truth.disabled = !has.truth;
    this.truth.title = has.truth
      ? "Show or hide the ground truth (t)"
      : "This slide has no ground truth";
    this.render();
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
    this.scale.value = this.hasScale ? scale : "zero";
  }
}
