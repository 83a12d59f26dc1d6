// The colour scale with its scores.

import { makeElement } from "./element";
import { formatScore } from "./format";
import type { ScoreMap } from "./score_map";
import type { Color } from "./server";
import type { Scale } from "./state";

const TICKS = [0, 0.25, 0.5, 0.75, 1];
const TICKS_AROUND_ZERO = [0, 0.5, 1];

export class Legend {
  readonly root = makeElement("figure", "legend");
  private readonly caption = makeElement("figcaption");
  private readonly ticks = makeElement("ol", "ticks");
  private readonly ramp = makeElement("canvas");

  constructor() {
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
    paintRamp(this.ramp, map.colors);
    const meaning = scale === "rank" ? "% of tiles below" : "min–max";
    this.caption.textContent = map.isDiverging ? "What a tile does" : `${title} · ${meaning}`;
    this.ticks.classList.toggle("around-zero", map.isDiverging);
    const ticks = map.isDiverging
      ? TICKS_AROUND_ZERO.map((share) => makeSignedTick(map, scale, share))
      : TICKS.map((share) => makeScaleTick(map, scale, share));
    this.ticks.replaceChildren(...ticks);
  }
}

function makeScaleTick(map: ScoreMap, scale: Scale, share: number): HTMLElement {
  const item = makeTick(share, formatScore(map.scoreAt(share, scale)));
  if (scale === "rank") item.prepend(makeElement("b", "", `${100 * share} %`));
  return item;
}

/** A tick with what tiles at this end do. */
function makeSignedTick(map: ScoreMap, scale: Scale, share: number): HTMLElement {
  const item = makeTick(share, formatSigned(map.scoreAt(share, scale)));
  const [above, below] = map.effects;
  item.append(makeElement("b", "", share === 1 ? above : share === 0 ? below : ""));
  return item;
}

function makeTick(share: number, text: string): HTMLElement {
  const item = makeElement("li");
  item.style.left = `${100 * share}%`;
  item.append(makeElement("span", "", text));
  return item;
}

/** A score with its sign. */
function formatSigned(score: number): string {
  if (!score) return "0";
  return score > 0 ? `+${formatScore(score)}` : formatScore(score);
}

function paintRamp(canvas: HTMLCanvasElement, colors: readonly Color[]): void {
  canvas.width = colors.length;
  canvas.height = 1;
  const pen = canvas.getContext("2d")!;
  colors.forEach((color, at) => {
    pen.fillStyle = `rgb(${color.join(",")})`;
    pen.fillRect(at, 0, 1, 1);
  });
}
