// What the colours mean, in numbers.

import { made } from "./element";
import { score } from "./words";
import type { ScoreMap } from "./score_map";
import type { Colour } from "./server";
import type { Scale } from "./state";

const TICKS = [0, 0.25, 0.5, 0.75, 1];

export class Legend {
  readonly root = made("figure", "legend");
  private readonly caption = made("figcaption");
  private readonly ticks = made("ol", "ticks");
  private readonly ramp: HTMLCanvasElement;

  constructor(colours: readonly Colour[]) {
    this.ramp = ramp(colours);
    const ground = made("div", "ground"); // white, as the slide mostly is
    ground.append(this.ramp);
    this.root.append(this.caption, ground, this.ticks);
    this.root.hidden = true;
  }

  /** As faint as the heatmap: these are the colours one sees on white. */
  set opacity(share: number) {
    this.ramp.style.opacity = String(share);
  }

  show(map: ScoreMap | null, scale: Scale, what: string): void {
    this.root.hidden = !map;
    if (!map) return;
    this.caption.textContent =
      scale === "rank" ? `${what} · % of tiles below` : `${what} · min–max`;
    this.ticks.replaceChildren(...TICKS.map((place) => tick(map, scale, place)));
  }
}

function tick(map: ScoreMap, scale: Scale, place: number): HTMLElement {
  const item = made("li");
  item.style.left = `${100 * place}%`;
  if (scale === "rank") item.append(made("b", "", `${100 * place} %`));
  item.append(made("span", "", score(map.valueAt(place, scale))));
  return item;
}

function ramp(colours: readonly Colour[]): HTMLCanvasElement {
  const canvas = made("canvas");
  canvas.width = colours.length;
  canvas.height = 1;
  const pen = canvas.getContext("2d")!;
  colours.forEach((colour, at) => {
    pen.fillStyle = `rgb(${colour.join(",")})`;
    pen.fillRect(at, 0, 1, 1);
  });
  return canvas;
}
