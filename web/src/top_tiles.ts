// The tiles that score highest, cut from the slide; a click flies there.

import { element, made } from "./element";
import { score } from "./words";
import type { Picture } from "./picture";
import type { ScoreMap } from "./score_map";
import type { Colour } from "./server";
import type { Scale } from "./state";

const SHOWN = 24;
const SIDE = 88; // CSS pixels

export class TopTiles {
  private readonly list = element("top-list");
  private readonly title = element("top-title");
  private tiles: number[] = [];
  private current = -1;
  /** How to cut the tiles that were not in sight yet. */
  private readonly cuts = new Map<Element, () => Promise<void>>();
  private readonly sight = new IntersectionObserver((entries) => this.cut(entries));

  constructor(
    private readonly colours: readonly Colour[],
    private readonly fly: (tile: number) => void,
  ) {}

  show(map: ScoreMap | null, picture: Picture | null, scale: Scale, what: string): void {
    this.tiles = map ? map.top(SHOWN) : [];
    this.current = -1;
    this.sight.disconnect();
    this.cuts.clear();
    this.title.textContent = map ? `Top tiles · ${what}` : "Top tiles";
    this.list.replaceChildren();
    this.list.scrollLeft = 0;
    if (!map || !picture) return;
    this.tiles.forEach((tile, at) => this.list.append(this.item(map, picture, scale, tile, at)));
  }

  /** Fly to the next one, or the one before. */
  step(by: number): void {
    if (!this.tiles.length) return;
    const last = this.tiles.length;
    const next = this.current < 0 ? (by > 0 ? 0 : last - 1) : (this.current + by + last) % last;
    this.go(next);
  }

  private cut(entries: IntersectionObserverEntry[]): void {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      void this.cuts.get(target)?.();
      this.cuts.delete(target);
      this.sight.unobserve(target);
    }
  }

  private go(at: number): void {
    this.current = at;
    [...this.list.children].forEach((item, other) =>
      item.firstElementChild?.setAttribute("aria-current", String(other === at)),
    );
    this.list.children[at]?.scrollIntoView({ block: "nearest", inline: "nearest" });
    this.fly(this.tiles[at]!);
  }

  private item(
    map: ScoreMap,
    picture: Picture,
    scale: Scale,
    tile: number,
    at: number,
  ): HTMLElement {
    const value = score(map.values[tile]!);
    const button = made("button");
    button.setAttribute("aria-label", `Fly to top tile ${at + 1}, score ${value}`);
    const step = Math.floor(map.place(tile, scale) * (this.colours.length - 1) + 0.5);
    const frame = made("span", "cut");
    frame.style.color = `rgb(${this.colours[step]!.join(",")})`;
    frame.classList.toggle("bare", !picture.crop);
    button.append(frame, made("span", "caption", `${at + 1} · ${value}`));
    button.addEventListener("click", () => this.go(at));
    const pixels = Math.round(SIDE * devicePixelRatio);
    this.cuts.set(frame, async () => {
      const cut = await picture.crop?.(map.x[tile]!, map.y[tile]!, map.side, pixels);
      if (cut) frame.append(cut);
    });
    this.sight.observe(frame);
    const item = made("li");
    item.append(button);
    return item;
  }
}
