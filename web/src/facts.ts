// The line that says what is known of a slide.

import { element } from "./element";
import { counted, plural } from "./words";
import type { Picture } from "./picture";
import type { Slide } from "./server";

export function showFacts(slide: Slide, picture: Picture | null, tiles: number | null): void {
  element("slide-name").textContent = slide.slide_id;
  const size = picture && picture.size[0] > 4 ? picture.size : slide.size;
  const mpp = picture?.mpp ?? slide.mpp;
  const words = [slide.label === null ? "no label" : `label ${slide.label}`];
  if (size) words.push(`${counted(size[0])} × ${counted(size[1])} px`);
  if (size && mpp) {
    words.push(`${size.map((side) => ((side * mpp) / 1000).toFixed(1)).join(" × ")} mm`);
  }
  words.push(mpp ? `${Number(mpp.toPrecision(4))} µm/px` : "scale unknown");
  if (tiles !== null) words.push(plural(tiles, "tile"));
  element("slide-facts").textContent = words.join("  ·  ");
}
