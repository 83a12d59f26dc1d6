// The scale bar: a length on screen and the magnification it corresponds to.

import { makeElement } from "./element";

const MAX_LENGTH_PX = 140; // screen pixels
const MICRONS_AT_10X = 1; // per pixel, by common usage

export class ScaleBar {
  readonly root = makeElement("div", "scale-bar");
  private readonly bar = makeElement("span", "bar");
  private readonly text = makeElement("span");

  constructor() {
    this.root.append(this.bar, this.text);
    this.root.hidden = true;
  }

  /** Show the bar for a number of microns per screen pixel; null hides it. */
  show(micronsPerPixel: number | null): void {
    this.root.hidden = !micronsPerPixel;
    if (!micronsPerPixel) return;
    const microns = roundLength(MAX_LENGTH_PX * micronsPerPixel);
    const magnification = (10 * MICRONS_AT_10X) / micronsPerPixel;
    this.bar.style.width = `${microns / micronsPerPixel}px`;
    this.text.textContent = `${formatLength(microns)} · ${formatMagnification(magnification)}`;
  }
}

/** The largest of 1, 2, 5, 10, 20 … up to a limit. */
function roundLength(limit: number): number {
  const ten = 10 ** Math.floor(Math.log10(limit));
  return ([5, 2, 1].find((step) => step * ten <= limit) ?? 1) * ten;
}

function formatLength(microns: number): string {
  if (microns >= 1000) return `${microns / 1000} mm`;
  return microns >= 1 ? `${microns} µm` : `${Math.round(microns * 1000)} nm`;
}

const formatMagnification = (times: number) =>
  `${times >= 10 ? Math.round(times) : Number(times.toPrecision(2))}×`;
