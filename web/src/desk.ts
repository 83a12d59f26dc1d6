// The slide on the desk: loads what was chosen, shows it, and keeps two views together.

import { element } from "./element";
import { showFacts } from "./facts";
import { outlinePath } from "./outlines";
import { Pane } from "./pane";
import { slidePicture, type Picture } from "./picture";
import type { ScoreMap } from "./score_map";
import { mapOf, ScoreShelf } from "./score_shelf";
import { answerOf, fetchSlide, fetchTruth } from "./server";
import type { Results, Slide, SlideImage } from "./server";
import type { State, Store, View } from "./state";
import { Toolbar } from "./toolbar";
import { TopTiles } from "./top_tiles";

const AROUND = 8; // what is in sight after flying to a tile, in its sides

export class Desk {
  private readonly panes: Pane[] = [];
  private readonly shelf = new ScoreShelf();
  private readonly tools: Toolbar;
  readonly topTiles: TopTiles;
  private loading = new AbortController();
  private image: SlideImage | null = null;
  private picture: Picture | null = null;
  /** What else there is to say of the slide. */
  private remark = "";
  /** Why no outlines are shown that were asked for. */
  private noOutlines = "";
  /** Why a pane shows no heatmap. */
  private readonly missing: [string, string] = ["", ""];

  constructor(
    private readonly results: Results,
    private readonly store: Store,
    private readonly moved: () => void,
  ) {
    this.tools = new Toolbar(results, store, () => this.active.stage.fit());
    const scored = results.slides.some((slide) => slide.answers.some((answer) => answer.scored));
    element("top-tiles").hidden = !scored;
    this.topTiles = new TopTiles(results.colours, (tile) => this.fly(tile));
    this.addPane(0);
    store.onChange((state, changed) => this.changed(state, changed));
  }

  /** The pane the user touched last; the other follows it. */
  get active(): Pane {
    return this.panes[this.store.now.compare ? this.store.now.active : 0] ?? this.panes[0]!;
  }

  get view(): View | null {
    return this.active.stage.view;
  }

  moveTo(view: View): void {
    this.active.stage.moveTo(view, { atOnce: true });
  }

  /** Load the chosen slide with everything on it. */
  async load(view: View | null): Promise<void> {
    this.loading.abort();
    this.loading = new AbortController();
    this.image = this.picture = null;
    this.arrange();
    for (const pane of this.panes) {
      pane.clear();
      pane.showModel(this.slide);
    }
    this.showOutlines(null); // those of another slide must never lie on this one
    this.describe();
    await this.guarded(async (signal) => {
      const { slide } = this.store.now;
      this.image = await fetchSlide(slide, signal);
      const map = this.image.zoomable ? null : await this.map(0, signal);
      this.picture = await slidePicture(slide, this.slide, this.image, map);
      signal.throwIfAborted();
      for (const pane of this.shown) pane.open(this.picture, view);
      await Promise.all([this.loadMaps(), this.loadTruth()]);
    });
  }

  /** Say something of the slide shown, beside what else is said of it. */
  tell(sentence: string): void {
    this.remark = sentence;
    this.tellAll();
  }

  private changed(state: Readonly<State>, changed: ReadonlySet<keyof State>): void {
    const any = (...keys: (keyof State)[]) => keys.some((key) => changed.has(key));
    if (any("slide")) this.remark = this.noOutlines = "";
    if (any("slide")) void this.load(null);
    else if (any("compare")) void this.compare(state.compare);
    else if (any("models", "scoreClass")) void this.guarded(() => this.loadMaps());
    if (any("scale")) for (const pane of this.shown) pane.paint();
    if (any("heat", "opacity", "scale")) for (const pane of this.shown) pane.fade();
    if (any("truth")) void this.guarded(() => this.loadTruth());
    if (any("active", "scale")) this.describe();
  }

  private get slide(): Slide {
    return this.results.slides[this.store.now.slide]!;
  }

  private get shown(): Pane[] {
    return this.store.now.compare ? this.panes : this.panes.slice(0, 1);
  }

  private addPane(number: 0 | 1): void {
    this.panes.push(
      new Pane(number, this.results, this.store, {
        moved: (pane) => this.follow(pane),
        touched: (pane) => this.store.change({ active: pane.number }),
        pointed: (place) => this.shown.forEach((pane) => pane.point(place)),
      }),
    );
  }

  /** As many panes as are wanted. */
  private arrange(): void {
    if (this.store.now.compare && this.panes.length < 2) this.addPane(1);
    this.panes.forEach((pane) => (pane.root.hidden = !this.shown.includes(pane)));
  }

  private async compare(wanted: boolean): Promise<void> {
    const view = this.panes[0]!.stage.view;
    this.arrange();
    if (wanted && this.picture) this.panes[1]!.open(this.picture, view);
    await this.guarded(async () => {
      await Promise.all([this.loadMaps(), this.loadTruth()]);
    });
  }

  private async loadMaps(): Promise<void> {
    const { signal } = this.loading;
    await Promise.all(
      this.shown.map(async (pane) => {
        pane.showModel(this.slide);
        const map = await this.map(pane.number, signal);
        signal.throwIfAborted();
        pane.showMap(map);
      }),
    );
    this.tellAll();
    this.describe();
  }

  private tellAll(): void {
    for (const pane of this.shown) {
      const note = this.picture?.note ?? "";
      pane.tell(this.remark, this.noOutlines, note, this.missing[pane.number]);
    }
  }

  /** The scores a pane is to show; where there are none, a sentence why is kept. */
  private async map(pane: 0 | 1, signal: AbortSignal): Promise<ScoreMap | null> {
    const { slide, models, scoreClass } = this.store.now;
    const answer = answerOf(this.slide, models[pane]);
    if (!answer?.scored) {
      const what = answer ? "left no scores of tiles" : "gave no answer";
      this.missing[pane] = `No heatmap: this model ${what} for this slide.`;
      return null;
    }
    try {
      const scores = await this.shelf.get(slide, models[pane], signal);
      const map = mapOf(scores, scoreClass, answer.predicted);
      this.missing[pane] = map ? "" : "No heatmap: this slide has no tiles.";
      if (map && scoreClass && map.scoreClass !== scoreClass) {
        const shown = map.scoreClass ? `those for ${map.scoreClass}` : "one score for all classes";
        this.missing[pane] = `No scores for ${scoreClass} here: shown are ${shown}.`;
      }
      return map;
    } catch (error) {
      signal.throwIfAborted();
      this.missing[pane] = `No heatmap: ${words(error)}`;
      return null;
    }
  }

  private async loadTruth(): Promise<void> {
    const { signal } = this.loading;
    const { truth, slide } = this.store.now;
    const wanted = truth && this.slide.truth;
    const origin = this.image?.bounds ?? [0, 0];
    let path: Path2D | null = null;
    this.noOutlines = "";
    try {
      if (wanted) path = outlinePath(await fetchTruth(slide, signal), origin);
    } catch (error) {
      this.noOutlines = `No outlines: ${words(error)}`;
    }
    signal.throwIfAborted();
    this.showOutlines(path);
    this.tellAll();
  }

  private showOutlines(path: Path2D | null): void {
    for (const pane of this.panes) {
      pane.stage.outlines = path;
      pane.stage.draw();
    }
  }

  /** Everything around the panes: facts, tools, top tiles, which pane is active. */
  private describe(): void {
    const { active, picture, slide } = this;
    const { scale, models } = this.store.now;
    const model = this.results.models[models[active.number]]?.name ?? "";
    const what = `${model}, ${active.map?.about || active.ownScore}`;
    showFacts(slide, picture, active.map?.count ?? null);
    this.topTiles.show(active.map, picture, scale, what);
    const scores = this.shown.some((pane) => pane.map);
    const classScores = this.shown.some((pane) => pane.map?.hasClasses);
    this.tools.allow({ scores, classScores, truth: slide.truth });
    for (const pane of this.panes) {
      pane.root.classList.toggle("active", pane === active && this.shown.length > 1);
    }
  }

  private fly(tile: number): void {
    const { map, stage } = this.active;
    if (!map) return;
    const half = map.side / 2;
    const { clientWidth, clientHeight } = stage.frame;
    // so that the surroundings show whether the pane is wide or tall
    const width = AROUND * map.side * Math.max(1, clientWidth / clientHeight);
    const marked = { x: map.x[tile]!, y: map.y[tile]!, side: map.side };
    for (const pane of this.shown) pane.mark(marked);
    stage.moveTo({ x: marked.x + half, y: marked.y + half, width }, { atOnce: false });
  }

  private follow(leader: Pane): void {
    if (leader !== this.active) return;
    const view = leader.stage.view;
    for (const pane of this.shown) {
      if (pane !== leader && view) pane.stage.moveTo(view, { atOnce: true });
    }
    this.moved();
  }

  /** Do something that may fail; say so where the image would be. */
  private async guarded(act: (signal: AbortSignal) => Promise<void>): Promise<void> {
    const { signal } = this.loading;
    try {
      await act(signal);
    } catch (error) {
      if (signal.aborted) return; // another slide was chosen meanwhile
      for (const pane of this.shown) pane.fail(words(error));
    }
  }
}

const words = (error: unknown) => (error instanceof Error ? error.message : String(error));
