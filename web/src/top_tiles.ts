// The tiles with the highest scores, cut from the slide; a click moves the view there.

import { getElement, makeElement } from "./element";
import { formatScore } from "./format";
import type { Picture } from "./picture";
import type { ScoreMap } from "./score_map";
import type { Scale } from "./state";

const MAX_TILES = 24;
const TILE_CSS_PX = 88; // CSS pixels

export class TopTiles {
  private readonly list = getElement("top-list");
  private readonly title = getElement("top-title");
  private tiles: number[] = [];
  private current = -1;
  /** Cuts the tiles that have not been visible yet. */
  private readonly pendingCuts = new Map<Element, () => Promise<void>>();
  private readonly visibilityObserver = new IntersectionObserver((entries) =>
    this.cutVisible(entries),
  );

  constructor(private readonly onSelect: (tile: number) => void) {}

  show(map: ScoreMap | null, picture: Picture | null, scale: Scale, title: string): void {
    this.tiles = map ? map.findTopTiles(MAX_TILES) : [];
    this.current = -1;
    this.visibilityObserver.disconnect();
    this.pendingCuts.clear();
    this.title.textContent = map ? `Top tiles · ${title}` : "Top tiles";
    this.list.replaceChildren();
    this.list.scrollLeft = 0;
    if (!map || !picture) return;
    this.tiles.forEach((tile, at) =>
      this.list.append(this.makeItem(map, picture, scale, tile, at)),
    );
  }

  /** Move to the next top tile, or to the previous one. */
  step(by: number): void {
    if (!this.tiles.length) return;
    const last = this.tiles.length;
    const next = this.current < 0 ? (by > 0 ? 0 : last - 1) : (this.current + by + last) % last;
    this.selectTile(next);
  }

  private cutVisible(entries: IntersectionObserverEntry[]): void {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      void this.pendingCuts.get(target)?.();
      this.pendingCuts.delete(target);
      this.visibilityObserver.unobserve(target);
    }
  }

  private selectTile(at: number): void {
    this.current = at;
    [...this.list.children].forEach((item, other) =>
      item.firstElementChild?.setAttribute("aria-current", String(other === at)),
    );
    this.list.children[at]?.scrollIntoView({ block: "nearest", inline: "nearest" });
    this.onSelect(this.tiles[at]!);
  }

  private makeItem(
    map: ScoreMap,
    picture: Picture,
    scale: Scale,
    tile: number,
    at: number,
  ): HTMLElement {
    const value = formatScore(map.values[tile]!);
    const button = makeElement("button");
    button.setAttribute("aria-label", `Fly to top tile ${at + 1}, score ${value}`);
    const step = Math.floor(map.scalePosition(tile, scale) * (map.colors.length - 1) + 0.5);
    const frame = makeElement("span", "cut");
    frame.style.color = `rgb(${map.colors[step]!.join(",")})`;
    frame.classList.toggle("bare", !picture.crop);
    button.append(frame, makeElement("span", "caption", `${at + 1} · ${value}`));
    button.addEventListener("click", () => this.selectTile(at));
    const pixels = Math.round(TILE_CSS_PX * devicePixelRatio);
    this.pendingCuts.set(frame, async () => {
      const cut = await picture.crop?.(map.x[tile]!, map.y[tile]!, map.side, pixels);
      if (cut) frame.append(cut);
    });
    this.visibilityObserver.observe(frame);
    const item = makeElement("li");
    item.append(button);
    return item;
  }
}
