// Loads the chosen slide, shows it in one or two panels, and keeps their views in step.

import { ComparePanel } from "./compare_panel";
import { getElement } from "./element";
import { makeOutlinePath } from "./outlines";
import { loadPicture, type Picture } from "./picture";
import { makeScoreMap, ScoreCache } from "./score_cache";
import type { ScoreMap } from "./score_map";
import { fetchSlide, fetchTruth, findPrediction } from "./server";
import type { Results, Slide, SlideImage } from "./server";
import { showSlideInfo } from "./slide_info";
import type { State, Store, View } from "./state";
import { Toolbar } from "./toolbar";
import { TopTiles } from "./top_tiles";

const TILES_IN_SIGHT = 8; // width of the view after flying to a tile, in tile sides

export class App {
  private readonly panels: ComparePanel[] = [];
  private readonly scoreCache = new ScoreCache();
  private readonly toolbar: Toolbar;
  readonly topTiles: TopTiles;
  private loading = new AbortController();
  private image: SlideImage | null = null;
  private picture: Picture | null = null;
  /** A message about the slide, shown with the other notices. */
  private remark = "";
  /** Why the requested outlines are missing. */
  private noOutlinesReason = "";
  /** Why a panel has no heatmap. */
  private readonly noHeatmapReasons: [string, string] = ["", ""];

  constructor(
    private readonly results: Results,
    private readonly store: Store,
    private readonly onMove: () => void,
  ) {
    this.toolbar = new Toolbar(results, store, () => this.active.canvas.fit());
    const predictions = results.slides.flatMap((slide) => slide.predictions);
    getElement("top-tiles").hidden = !predictions.some((prediction) => prediction.has_scores);
    this.topTiles = new TopTiles((tile) => this.flyToTile(tile));
    this.addPanel(0);
    store.onChange((state, changed) => this.handleChange(state, changed));
  }

  /** The panel the user touched last; the other follows it. */
  get active(): ComparePanel {
    const { compare, active } = this.store.current;
    return this.panels[compare ? active : 0] ?? this.panels[0]!;
  }

  get view(): View | null {
    return this.active.canvas.view;
  }

  moveTo(view: View): void {
    this.active.canvas.moveTo(view, { atOnce: true });
  }

  /** Load the chosen slide with its scores and outlines. */
  async load(view: View | null): Promise<void> {
    this.loading.abort();
    this.loading = new AbortController();
    this.image = this.picture = null;
    this.arrangePanels();
    for (const panel of this.panels) {
      panel.clear();
      panel.showModel(this.slide);
    }
    this.showOutlines(null); // those of another slide must never lie on this one
    this.updateSurroundings();
    await this.runGuarded(async (signal) => {
      const { slide } = this.store.current;
      this.image = await fetchSlide(slide, signal);
      const map = this.image.zoomable ? null : await this.loadMap(0, signal);
      this.picture = await loadPicture(slide, this.slide, this.image, map);
      signal.throwIfAborted();
      for (const panel of this.visiblePanels) panel.open(this.picture, view);
      await Promise.all([this.loadMaps(), this.loadTruth()]);
    });
  }

  /** Show a message about the slide, with the other notices. */
  showRemark(message: string): void {
    this.remark = message;
    this.showNotices();
  }

  private handleChange(state: Readonly<State>, changed: ReadonlySet<keyof State>): void {
    const any = (...keys: (keyof State)[]) => keys.some((key) => changed.has(key));
    if (any("slide")) this.remark = this.noOutlinesReason = "";
    if (any("slide")) void this.load(null);
    else if (any("compare")) void this.showComparison(state.compare);
    else if (any("models", "scoreClass")) void this.runGuarded(() => this.loadMaps());
    if (any("scale")) for (const panel of this.visiblePanels) panel.paintMap();
    if (any("heat", "opacity", "scale")) {
      for (const panel of this.visiblePanels) panel.applyOpacity();
    }
    if (any("truth")) void this.runGuarded(() => this.loadTruth());
    if (any("active", "scale")) this.updateSurroundings();
  }

  private get slide(): Slide {
    return this.results.slides[this.store.current.slide]!;
  }

  private get visiblePanels(): ComparePanel[] {
    return this.store.current.compare ? this.panels : this.panels.slice(0, 1);
  }

  private addPanel(number: 0 | 1): void {
    this.panels.push(
      new ComparePanel(number, this.results, this.store, {
        onMove: (panel) => this.syncPanels(panel),
        onTouch: (panel) => this.store.change({ active: panel.number }),
        onPoint: (position) => this.visiblePanels.forEach((panel) => panel.showTileAt(position)),
      }),
    );
  }

  /** Show one panel, or two for a comparison. */
  private arrangePanels(): void {
    if (this.store.current.compare && this.panels.length < 2) this.addPanel(1);
    this.panels.forEach((panel) => (panel.root.hidden = !this.visiblePanels.includes(panel)));
  }

  private async showComparison(wanted: boolean): Promise<void> {
    const view = this.panels[0]!.canvas.view;
    this.arrangePanels();
    if (wanted && this.picture) this.panels[1]!.open(this.picture, view);
    await this.runGuarded(async () => {
      await Promise.all([this.loadMaps(), this.loadTruth()]);
    });
  }

  private async loadMaps(): Promise<void> {
    const { signal } = this.loading;
    await Promise.all(
      this.visiblePanels.map(async (panel) => {
        panel.showModel(this.slide);
        const map = await this.loadMap(panel.number, signal);
        signal.throwIfAborted();
        panel.showMap(map);
      }),
    );
    this.showNotices();
    this.updateSurroundings();
  }

  private showNotices(): void {
    for (const panel of this.visiblePanels) {
      const note = this.picture?.note ?? "";
      const noHeatmap = this.noHeatmapReasons[panel.number];
      panel.setNotices(this.remark, this.noOutlinesReason, note, noHeatmap);
    }
  }

  /** Load the scores for a panel; null if there are none, with the reason in noHeatmapReasons. */
  private async loadMap(panel: 0 | 1, signal: AbortSignal): Promise<ScoreMap | null> {
    const { slide, models, scoreClass } = this.store.current;
    const prediction = findPrediction(this.slide, models[panel]);
    if (!prediction?.has_scores) {
      const missing = prediction ? "tile scores" : "prediction";
      this.noHeatmapReasons[panel] = `No heatmap: this model has no ${missing} for this slide.`;
      return null;
    }
    try {
      const scores = await this.scoreCache.get(slide, models[panel], signal);
      const map = makeScoreMap(this.results, scores, scoreClass, prediction);
      this.noHeatmapReasons[panel] = map ? "" : "No heatmap: this slide has no tiles.";
      if (map && scoreClass && map.scoreClass !== scoreClass) {
        const all = `one score for all ${this.results.score_names_title.toLowerCase()}`;
        const shown = map.scoreClass ? `scores for ${map.scoreClass}` : all;
        this.noHeatmapReasons[panel] = `No scores for ${scoreClass} here. Showing ${shown}.`;
      }
      return map;
    } catch (error) {
      signal.throwIfAborted();
      this.noHeatmapReasons[panel] = `No heatmap: ${errorMessage(error)}`;
      return null;
    }
  }

  private async loadTruth(): Promise<void> {
    const { signal } = this.loading;
    const { truth, slide } = this.store.current;
    const wanted = truth && this.slide.truth;
    const origin = this.image?.bounds ?? [0, 0];
    let path: Path2D | null = null;
    this.noOutlinesReason = "";
    try {
      if (wanted) path = makeOutlinePath(await fetchTruth(slide, signal), origin);
    } catch (error) {
      this.noOutlinesReason = `No outlines: ${errorMessage(error)}`;
    }
    signal.throwIfAborted();
    this.showOutlines(path);
    this.showNotices();
  }

  private showOutlines(path: Path2D | null): void {
    for (const panel of this.panels) {
      panel.canvas.outlines = path;
      panel.canvas.draw();
    }
  }

  /** Update everything around the panels: slide info, toolbar, top tiles, active panel. */
  private updateSurroundings(): void {
    const { active, picture, slide } = this;
    const { scale, models } = this.store.current;
    const model = this.results.models[models[active.number]]?.name ?? "";
    const title = `${model}, ${active.map?.description || active.scoreDescription}`;
    showSlideInfo(slide, picture, active.map?.count ?? null);
    this.topTiles.show(active.map, picture, scale, title);
    const maps = this.visiblePanels.flatMap((panel) => panel.map ?? []);
    this.toolbar.setAvailable({
      scores: maps.length > 0,
      classScores: maps.some((map) => map.hasClasses),
      scale: maps.some((map) => !map.isDiverging),
      truth: slide.truth,
    });
    for (const panel of this.panels) {
      panel.root.classList.toggle("active", panel === active && this.visiblePanels.length > 1);
    }
  }

  private flyToTile(tile: number): void {
    const { map, canvas } = this.active;
    if (!map) return;
    const half = map.side / 2;
    const { clientWidth, clientHeight } = canvas.frame;
    // the surroundings must show in wide and in tall panels
    const width = TILES_IN_SIGHT * map.side * Math.max(1, clientWidth / clientHeight);
    const marked = { x: map.x[tile]!, y: map.y[tile]!, side: map.side };
    for (const panel of this.visiblePanels) panel.markTile(marked);
    canvas.moveTo({ x: marked.x + half, y: marked.y + half, width }, { atOnce: false });
  }

  private syncPanels(leader: ComparePanel): void {
    if (leader !== this.active) return;
    const view = leader.canvas.view;
    for (const panel of this.visiblePanels) {
      if (panel !== leader && view) panel.canvas.moveTo(view, { atOnce: true });
    }
    this.onMove();
  }

  /** Run an action; if it fails, show the error in the panels. */
  private async runGuarded(act: (signal: AbortSignal) => Promise<void>): Promise<void> {
    const { signal } = this.loading;
    try {
      await act(signal);
    } catch (error) {
      if (signal.aborted) return; // another slide was chosen meanwhile
      for (const panel of this.visiblePanels) panel.showFailure(errorMessage(error));
    }
  }
}

const errorMessage = (error: unknown) => (error instanceof Error ? error.message : String(error));
