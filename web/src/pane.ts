// One view of a slide with one model's answer: the second appears when models are compared.

import { element, made, option } from "./element";
import { HeatPicture } from "./heat_picture";
import { Legend } from "./legend";
import { counted, percent, score } from "./words";
import type { Picture } from "./picture";
import { ScaleBar } from "./scale_bar";
import type { ScoreMap } from "./score_map";
import type { Results, Slide } from "./server";
import { Stage, type Square } from "./stage";
import type { Store, View } from "./state";
import { verdict } from "./verdict";

export interface PaneEvents {
  moved: (pane: Pane) => void;
  touched: (pane: Pane) => void;
  pointed: (place: [number, number] | null) => void;
}

export class Pane {
  readonly root = made("section", "pane");
  readonly stage: Stage;
  map: ScoreMap | null = null;
  private picture: Picture | null = null;
  private lost = ""; // why parts of the picture do not come
  private sentences: string[] = [];
  private readonly chooser = made("select");
  private readonly said = made("div", "said");
  private readonly notice = made("p", "notice");
  private readonly loading = made("p", "loading", "Loading…");
  private readonly readout = made("output", "readout");
  private readonly legend: Legend;
  private readonly scaleBar = new ScaleBar();

  constructor(
    readonly number: 0 | 1,
    private readonly results: Results,
    private readonly store: Store,
    events: PaneEvents,
  ) {
    this.root.id = `pane-${number}`;
    this.root.setAttribute("aria-label", number ? "Second view" : "View");
    this.legend = new Legend(results.colours);
    const frame = made("div", "stage");
    const head = made("header");
    head.append(this.chooser, this.said);
    this.root.append(head, this.notice, frame);
    element("panes").append(this.root);
    this.stage = new Stage(frame, {
      moved: () => this.moved(events),
      touched: () => events.touched(this),
      failed: (sentence) => this.lose(sentence),
    });
    frame.append(this.loading, this.scaleBar.root, this.readout, this.legend.root);
    this.notice.setAttribute("role", "status");
    this.tell();
    this.fillChooser();
    this.listen(frame, events);
  }

  /** Show a slide's picture, at a view or whole. */
  open(picture: Picture, view: View | null): void {
    this.picture = picture;
    this.stage.marked = this.stage.hovered = null;
    this.loading.hidden = true;
    this.lost = "";
    this.stage.open(picture, view);
  }

  /** Clear the stage for the next slide. */
  clear(): void {
    this.picture = null;
    this.showMap(null);
    this.stage.close();
    this.scaleBar.show(null);
    this.loading.hidden = false;
    this.lost = "";
    this.tell();
  }

  /** Nothing more will come. */
  fail(sentence: string): void {
    this.loading.hidden = true;
    this.tell(sentence);
  }

  /** Say what is missing or failed, above the image, which stays in sight. */
  tell(...sentences: string[]): void {
    this.sentences = sentences;
    this.showNotice();
  }

  showModel(slide: Slide): void {
    const model = this.store.now.models[this.number];
    this.chooser.value = String(model);
    this.said.replaceChildren(verdict(this.results, slide, model));
  }

  showMap(map: ScoreMap | null): void {
    this.map = map;
    this.paint();
    this.point(null);
  }

  /** Paint the map anew, after another scale was chosen. */
  paint(): void {
    const { scale } = this.store.now;
    this.stage.heat = null;
    if (this.map) this.stage.heat = new HeatPicture(this.map, scale, this.results.colours);
    this.fade();
  }

  /** Draw again with the opacity and layers chosen now. */
  fade(): void {
    const { heat, opacity, scale } = this.store.now;
    this.stage.opacity = heat ? opacity : 0;
    this.legend.opacity = opacity;
    this.legend.show(heat ? this.map : null, scale, this.map?.about || this.ownScore);
    this.stage.draw();
  }

  /** What a tile's score is where a model has none by class. */
  get ownScore(): string {
    const members = this.results.models[this.store.now.models[this.number]]?.members ?? 1;
    return members > 1 ? `mean rank by ${members} members` : "score, one for all classes";
  }

  /** Outline a tile, of whichever model. */
  mark(square: Square): void {
    this.stage.marked = square;
    this.stage.draw();
  }

  /** Tell of the tile at a place of the slide. */
  point(place: [number, number] | null): void {
    const tile = place && this.map ? this.map.tileAt(...place) : -1;
    this.readout.textContent = this.tileWords(tile);
    this.readout.hidden = tile < 0;
    this.stage.hovered = this.squareOf(tile);
    this.stage.draw();
  }

  /** Stays told, whatever else there is to say, until another picture is opened. */
  private lose(sentence: string): void {
    this.loading.hidden = true;
    this.lost = sentence;
    this.showNotice();
  }

  private showNotice(): void {
    this.notice.textContent = [this.lost, ...this.sentences].filter(Boolean).join(" ");
    this.notice.hidden = !this.notice.textContent;
  }

  private moved(events: PaneEvents): void {
    const view = this.stage.view;
    if (view) {
      const pixel = view.width / this.stage.frame.clientWidth;
      this.scaleBar.show(this.picture?.mpp ? pixel * this.picture.mpp : null);
      this.root.dataset["view"] = [view.x, view.y, view.width].map(Math.round).join(",");
    }
    events.moved(this);
  }

  private squareOf(tile: number): Square | null {
    const { map } = this;
    return map && tile >= 0 ? { x: map.x[tile]!, y: map.y[tile]!, side: map.side } : null;
  }

  private tileWords(tile: number): string {
    const { map } = this;
    if (!map || tile < 0) return "";
    const share = percent(map.place(tile, "rank"));
    const rank = `rank ${counted(map.position(tile))} of ${counted(map.count)} (above ${share})`;
    const place = `x ${counted(map.x[tile]!)}  y ${counted(map.y[tile]!)}`;
    return `${score(map.values[tile]!, 4)} · ${rank} · ${place}`;
  }

  private fillChooser(): void {
    this.chooser.setAttribute("aria-label", "Model");
    this.chooser.append(
      ...this.results.models.map(({ name, members }, model) => {
        const key = model < 9 ? `${model + 1}  ` : "";
        return option(String(model), key + name + (members > 1 ? `, mean of ${members}` : ""));
      }),
    );
    this.chooser.addEventListener("input", () =>
      this.store.chooseModel(Number(this.chooser.value), this.number),
    );
  }

  private listen(frame: HTMLElement, events: PaneEvents): void {
    frame.addEventListener("pointermove", (event) => events.pointed(this.stage.placeUnder(event)));
    frame.addEventListener("pointerleave", () => events.pointed(null));
    this.root.addEventListener("focusin", () => events.touched(this));
  }
}
