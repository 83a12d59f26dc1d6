// The line above the slide: label, size, scale, number of tiles.

import { getElement } from "./element";
import { formatCount, formatPlural } from "./format";
import type { Picture } from "./picture";
import type { Slide } from "./server";

export function showSlideInfo(slide: Slide, picture: Picture | null, tiles: number | null): void {
  getElement("slide-name").textContent = slide.slide_id;
  const size = picture && picture.size[0] > 4 ? picture.size : slide.size;
  const mpp = picture?.mpp ?? slide.mpp;
  const details = [slide.label === null ? "no label" : `label ${slide.label}`];
  if (size) details.push(`${formatCount(size[0])} × ${formatCount(size[1])} px`);
  if (size && mpp) {
    details.push(`${size.map((side) => ((side * mpp) / 1000).toFixed(1)).join(" × ")} mm`);
  }
  details.push(mpp ? `${Number(mpp.toPrecision(4))} µm/px` : "scale unknown");
  if (tiles !== null) details.push(formatPlural(tiles, "tile"));
  getElement("slide-details").textContent = details.join("  ·  ");
}
