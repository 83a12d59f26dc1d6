// One view of a slide with one model's prediction. A comparison shows two.

import { CurvePicture } from "./curve_picture";
import { getElement, makeElement, makeOption } from "./element";
import { formatCount, formatPercent, formatScore } from "./format";
import { HeatPicture } from "./heat_picture";
import { Legend } from "./legend";
import type { Picture } from "./picture";
import { makePredictionBar } from "./prediction_bar";
import { ScaleBar } from "./scale_bar";
import type { ScoreMap } from "./score_map";
import { findPrediction, type Results, type Slide } from "./server";
import { SlideCanvas, type Square } from "./slide_canvas";
import type { Store, View } from "./state";

export interface ComparePanelEvents {
  onMove: (panel: ComparePanel) => void;
  onTouch: (panel: ComparePanel) => void;
  onPoint: (position: [number, number] | null) => void;
}

export class ComparePanel {
  readonly root = makeElement("section", "compare-panel");
  readonly canvas: SlideCanvas;
  map: ScoreMap | null = null;
  private picture: Picture | null = null;
  private pictureError = ""; // why parts of the picture are missing
  private messages: string[] = [];
  private readonly modelChooser = makeElement("select");
  private readonly prediction = makeElement("div", "prediction");
  private readonly notice = makeElement("p", "notice");
  private readonly loading = makeElement("p", "loading", "Loading…");
  private readonly readout = makeElement("output", "readout");
  private readonly legend = new Legend();
  private readonly scaleBar = new ScaleBar();
  private readonly curve = new CurvePicture();

  constructor(
    readonly number: 0 | 1,
    private readonly results: Results,
    private readonly store: Store,
    events: ComparePanelEvents,
  ) {
    this.root.id = `panel-${number}`;
    this.root.setAttribute("aria-label", number ? "Second view" : "View");
    const frame = makeElement("div", "slide-canvas");
    const head = makeElement("header");
    head.append(this.modelChooser, this.prediction);
    this.root.append(head, this.notice, this.curve.root, frame);
    getElement("panels").append(this.root);
    this.canvas = new SlideCanvas(frame, {
      onMove: () => this.handleMove(events),
      onTouch: () => events.onTouch(this),
      onError: (message) => this.showPictureError(message),
    });
    frame.append(this.loading, this.scaleBar.root, this.readout, this.legend.root);
    this.notice.setAttribute("role", "status");
    this.setNotices();
    this.fillChooser();
    this.listen(frame, events);
  }

  /** Show a slide's picture, at a view or fitted to the panel. */
  open(picture: Picture, view: View | null): void {
    this.picture = picture;
    this.canvas.marked = this.canvas.hovered = null;
    this.loading.hidden = true;
    this.pictureError = "";
    this.canvas.open(picture, view);
  }

  /** Clear the canvas for the next slide. */
  clear(): void {
    this.picture = null;
    this.showMap(null);
    this.canvas.close();
    this.scaleBar.show(null);
    this.loading.hidden = false;
    this.pictureError = "";
    this.setNotices();
  }

  /** Stop waiting, and show why loading failed. */
  showFailure(message: string): void {
    this.loading.hidden = true;
    this.setNotices(message);
  }

  /** Show above the image what is missing or failed. */
  setNotices(...messages: string[]): void {
    this.messages = messages;
    this.showNotice();
  }

  showModel(slide: Slide): void {
    const model = this.store.current.models[this.number];
    this.modelChooser.value = String(model);
    this.prediction.replaceChildren(makePredictionBar(this.results, slide, model));
    this.curve.show(findPrediction(slide, model)?.curve ?? null);
  }

  showMap(map: ScoreMap | null): void {
    this.map = map;
    this.paintMap();
    this.showTileAt(null);
  }

  /** Paint the map again, after another scale was chosen. */
  paintMap(): void {
    const { scale } = this.store.current;
    this.canvas.heat = null;
    if (this.map) this.canvas.heat = new HeatPicture(this.map, scale);
    this.applyOpacity();
  }

  /** Draw again with the current opacity and layers. */
  applyOpacity(): void {
    const { heat, opacity, scale } = this.store.current;
    this.canvas.opacity = heat ? opacity : 0;
    this.legend.opacity = opacity;
    this.legend.show(heat ? this.map : null, scale, this.map?.description || this.scoreDescription);
    this.canvas.draw();
  }

  /** The caption of scores from a model without class scores. */
  get scoreDescription(): string {
    const members = this.results.models[this.store.current.models[this.number]]?.members ?? 1;
    if (members > 1) return `mean rank by ${members} members`;
    const { diverging, score_names, score_names_title } = this.results;
    if (diverging) return "how much a tile counts, in either direction";
    const all = score_names_title.toLowerCase();
    return score_names.length > 1 ? `score, one for all ${all}` : "score";
  }

  /** Outline a tile, which may be another model's. */
  markTile(square: Square): void {
    this.canvas.marked = square;
    this.canvas.draw();
  }

  /** Show score and rank of the tile at a position of the slide. */
  showTileAt(position: [number, number] | null): void {
    const tile = position && this.map ? this.map.tileAt(...position) : -1;
    this.readout.textContent = this.describeTile(tile);
    this.readout.hidden = tile < 0;
    this.canvas.hovered = this.squareOf(tile);
    this.canvas.draw();
  }

  /** Show an error that stays, beside other messages, until another picture is opened. */
  private showPictureError(message: string): void {
    this.loading.hidden = true;
    this.pictureError = message;
    this.showNotice();
  }

  private showNotice(): void {
    this.notice.textContent = [this.pictureError, ...this.messages].filter(Boolean).join(" ");
    this.notice.hidden = !this.notice.textContent;
  }

  private handleMove(events: ComparePanelEvents): void {
    const view = this.canvas.view;
    if (view) {
      const pixel = view.width / this.canvas.frame.clientWidth;
      this.scaleBar.show(this.picture?.mpp ? pixel * this.picture.mpp : null);
      this.root.dataset["view"] = [view.x, view.y, view.width].map(Math.round).join(",");
    }
    events.onMove(this);
  }

  private squareOf(tile: number): Square | null {
    const { map } = this;
    return map && tile >= 0 ? { x: map.x[tile]!, y: map.y[tile]!, side: map.side } : null;
  }

  private describeTile(tile: number): string {
    const { map } = this;
    if (!map || tile < 0) return "";
    const share = formatPercent(map.rankShare(tile));
    const [place, count] = [formatCount(map.rankOf(tile)), formatCount(map.count)];
    const rank = `rank ${place} of ${count} (above ${share})`;
    const position = `x ${formatCount(map.x[tile]!)}  y ${formatCount(map.y[tile]!)}`;
    return `${formatScore(map.values[tile]!, 4)} · ${rank} · ${position}`;
  }

  private fillChooser(): void {
    this.modelChooser.setAttribute("aria-label", "Model");
    this.modelChooser.append(
      ...this.results.models.map(({ name, members }, model) => {
        const key = model < 9 ? `${model + 1}  ` : "";
        return makeOption(String(model), key + name + (members > 1 ? `, mean of ${members}` : ""));
      }),
    );
    this.modelChooser.addEventListener("input", () =>
      this.store.chooseModel(Number(this.modelChooser.value), this.number),
    );
  }

  private listen(frame: HTMLElement, events: ComparePanelEvents): void {
    frame.addEventListener("pointermove", (event) =>
      events.onPoint(this.canvas.positionUnder(event)),
    );
    frame.addEventListener("pointerleave", () => events.onPoint(null));
    this.root.addEventListener("focusin", () => events.onTouch(this));
  }
}
