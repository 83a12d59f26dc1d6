// How long things are on screen, and at which magnification one would see them so.

import { made } from "./element";

const LONGEST = 140; // screen pixels
const MICRONS_AT_10X = 1; // per pixel, by common usage

export class ScaleBar {
  readonly root = made("div", "scale-bar");
  private readonly bar = made("span", "bar");
  private readonly text = made("span");

  constructor() {
    this.root.append(this.bar, this.text);
    this.root.hidden = true;
  }

  /** Show it for so many microns per screen pixel; without, there is nothing to show. */
  show(micronsPerPixel: number | null): void {
    this.root.hidden = !micronsPerPixel;
    if (!micronsPerPixel) return;
    const microns = roundLength(LONGEST * micronsPerPixel);
    const magnification = (10 * MICRONS_AT_10X) / micronsPerPixel;
    this.bar.style.width = `${microns / micronsPerPixel}px`;
    this.text.textContent = `${lengthWords(microns)} · ${magnificationWords(magnification)}`;
  }
}

/** The largest of 1, 2, 5, 10, 20 … that is not longer. */
function roundLength(most: number): number {
  const ten = 10 ** Math.floor(Math.log10(most));
  return ([5, 2, 1].find((step) => step * ten <= most) ?? 1) * ten;
}

function lengthWords(microns: number): string {
  if (microns >= 1000) return `${microns / 1000} mm`;
  return microns >= 1 ? `${microns} µm` : `${Math.round(microns * 1000)} nm`;
}

const magnificationWords = (times: number) =>
  `${times >= 10 ? Math.round(times) : Number(times.toPrecision(2))}×`;
