// The colour scale with its scores.

import { makeElement } from "./element";
import { formatScore } from "./format";
import type { ScoreMap } from "./score_map";
import type { Color } from "./server";
import type { Scale } from "./state";

const TICKS = [0, 0.25, 0.5, 0.75, 1];

export class Legend {
  readonly root = makeElement("figure", "legend");
  private readonly caption = makeElement("figcaption");
  private readonly ticks = makeElement("ol", "ticks");
  private readonly ramp: HTMLCanvasElement;

  constructor(colors: readonly Color[]) {
    this.ramp = makeRamp(colors);
    const ground = makeElement("div", "ground"); // white, as the slide mostly is
    ground.append(this.ramp);
    this.root.append(this.caption, ground, this.ticks);
    this.root.hidden = true;
  }

  /** Use the heatmap's opacity, so that the legend shows its colours on white. */
  set opacity(share: number) {
    this.ramp.style.opacity = String(share);
  }

  show(map: ScoreMap | null, scale: Scale, title: string): void {
    this.root.hidden = !map;
    if (!map) return;
    this.caption.textContent =
      scale === "rank" ? `${title} · % of tiles below` : `${title} · min–max`;
    this.ticks.replaceChildren(...TICKS.map((share) => makeTick(map, scale, share)));
  }
}

function makeTick(map: ScoreMap, scale: Scale, share: number): HTMLElement {
  const item = makeElement("li");
  item.style.left = `${100 * share}%`;
  if (scale === "rank") item.append(makeElement("b", "", `${100 * share} %`));
  item.append(makeElement("span", "", formatScore(map.scoreAt(share, scale))));
  return item;
}

function makeRamp(colors: readonly Color[]): HTMLCanvasElement {
  const canvas = makeElement("canvas");
  canvas.width = colors.length;
  canvas.height = 1;
  const pen = canvas.getContext("2d")!;
  colors.forEach((color, at) => {
    pen.fillStyle = `rgb(${color.join(",")})`;
    pen.fillRect(at, 0, 1, 1);
  });
  return canvas;
}
