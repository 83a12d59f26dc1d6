// A slide one can zoom into, and what is drawn over it: heat, outlines, marked tiles.

import OpenSeadragon from "openseadragon";

import type { HeatPicture } from "./heat_picture";
import type { Picture } from "./picture";
import { reasonOf } from "./server";
import type { View } from "./state";

export interface Square {
  x: number;
  y: number;
  side: number;
}

export interface StageEvents {
  moved: () => void;
  touched: () => void;
  failed: (sentence: string) => void;
}

const MARK = "#ff2d55"; // neither in tissue nor on the colour scale
const MOST_ENLARGED = 4; // screen pixels to a level-0 pixel

export class Stage {
  heat: HeatPicture | null = null;
  opacity = 0.5;
  outlines: Path2D | null = null;
  marked: Square | null = null;
  hovered: Square | null = null;
  private readonly viewer: OpenSeadragon.Viewer;
  private readonly canvas: HTMLCanvasElement;
  private size: [number, number] = [1, 1];
  private isOpen = false;
  /** Whether the whole slide is in sight because nobody has moved: then it stays so. */
  private whole = true;
  /** What was in sight when the layers were last drawn. */
  private sight = "";
  private next: { view: View | null } | null = null;

  constructor(
    readonly frame: HTMLElement,
    private readonly events: StageEvents,
  ) {
    const below = frame.appendChild(document.createElement("div"));
    below.className = "image";
    keepStylesOut();
    this.viewer = OpenSeadragon(options(below));
    this.canvas = document.createElement("canvas");
    this.canvas.className = "overlay";
    this.viewer.canvas.after(this.canvas); // above the slide, below the little map of it
    this.listen();
    this.viewer.canvas.setAttribute("aria-label", "Slide: arrow keys pan, + and − zoom");
  }

  /** Show another picture, at a view or whole. */
  open(picture: Picture, view: View | null): void {
    this.isOpen = false;
    this.tellBusy(true);
    this.next = { view };
    this.size = picture.size;
    // on a coarse picture one can go as near as on the slide, to see single tiles
    Object.assign(this.viewer.viewport, { maxZoomPixelRatio: MOST_ENLARGED * picture.coarseness });
    this.viewer.open({ tileSource: picture.source });
  }

  close(): void {
    this.isOpen = false;
    this.next = null;
    this.viewer.close();
    this.draw();
  }

  get view(): View | null {
    if (!this.isOpen) return null;
    const seen = this.viewer.viewport.getBounds(true);
    const [width] = this.size;
    return {
      x: (seen.x + seen.width / 2) * width,
      y: (seen.y + seen.height / 2) * width,
      width: seen.width * width,
    };
  }

  moveTo(view: View, how: { atOnce: boolean }): void {
    if (!this.isOpen) {
      if (this.next) this.next.view = view;
      return;
    }
    this.whole = false;
    const [width] = this.size;
    const middle = new OpenSeadragon.Point(view.x / width, view.y / width);
    this.viewer.viewport.zoomTo(width / view.width, undefined, how.atOnce);
    this.viewer.viewport.panTo(middle, how.atOnce);
  }

  fit(): void {
    this.whole = true;
    if (this.isOpen) this.viewer.viewport.goHome();
  }

  zoomBy(factor: number): void {
    if (!this.isOpen) return;
    this.whole = false;
    this.viewer.viewport.zoomBy(factor);
    this.viewer.viewport.applyConstraints();
  }

  /** Move by shares of what is in sight. */
  panBy(across: number, down: number): void {
    if (!this.isOpen) return;
    this.whole = false;
    const seen = this.viewer.viewport.getBounds();
    this.viewer.viewport.panBy(
      new OpenSeadragon.Point(across * seen.width, down * seen.height),
    );
    this.viewer.viewport.applyConstraints();
  }

  /** Level-0 pixels under a place of the window. */
  placeUnder(event: PointerEvent): [number, number] | null {
    const view = this.view;
    if (!view) return null;
    const frame = this.frame.getBoundingClientRect();
    const pixel = view.width / frame.width;
    return [
      view.x + (event.clientX - frame.left - frame.width / 2) * pixel,
      view.y + (event.clientY - frame.top - frame.height / 2) * pixel,
    ];
  }

  draw(): void {
    const pen = this.cleared();
    const view = this.view;
    if (!view) return;
    const zoom = this.canvas.width / view.width;
    const left = view.x - view.width / 2;
    const top = view.y - this.canvas.height / zoom / 2;
    this.heat?.draw(pen, left, top, zoom, this.opacity);
    pen.setTransform(zoom, 0, 0, zoom, -left * zoom, -top * zoom);
    const line = devicePixelRatio / zoom;
    if (this.outlines) stroke(pen, this.outlines, line, "#ffffff", "#000000");
    if (this.hovered) stroke(pen, squarePath(this.hovered), line * 0.75, "#000000", "#ffffff");
    if (this.marked) stroke(pen, squarePath(this.marked), line * 1.5, "#ffffff", MARK);
  }

  private opened(): void {
    this.isOpen = true;
    const image = this.viewer.world.getItemAt(0);
    image.addHandler("fully-loaded-change", () => this.tellBusy(!image.getFullyLoaded()));
    this.tellBusy(!image.getFullyLoaded());
    const view = this.next?.view;
    this.whole = !view;
    if (view) this.moveTo(view, { atOnce: true });
    else this.viewer.viewport.goHome(true);
    this.draw();
  }

  private listen(): void {
    this.viewer.addHandler("open", () => this.opened());
    this.viewer.addHandler("open-failed", () =>
      this.events.failed("The picture could not be opened."),
    );
    this.viewer.addHandler("tile-load-failed", (event) => {
      void reasonOf(event.tile?.getUrl() ?? "").then((reason) => {
        if (reason) this.events.failed(reason);
      });
    });
    this.viewer.addHandler("update-viewport", () => {
      const { clientWidth, clientHeight } = this.frame;
      const sight = JSON.stringify([this.view, clientWidth, clientHeight]);
      if (sight === this.sight) return; // only a tile of the slide has come
      this.sight = sight;
      this.draw();
      this.events.moved();
    });
    this.viewer.addHandler("resize", () => {
      // only then is OpenSeadragon done with zooming as it thinks best
      queueMicrotask(() => this.whole && this.isOpen && this.viewer.viewport.goHome(true));
    });
    // the page's own keys do more than OpenSeadragon's
    this.viewer.addHandler("canvas-key", (event) => {
      event.preventDefaultAction = true;
    });
    for (const touched of ["canvas-press", "canvas-scroll", "canvas-pinch"] as const) {
      this.viewer.addHandler(touched, () => {
        this.whole = false;
        this.events.touched();
      });
    }
  }

  private tellBusy(busy: boolean): void {
    this.frame.setAttribute("aria-busy", String(busy));
  }

  private cleared(): CanvasRenderingContext2D {
    const width = Math.round(this.frame.clientWidth * devicePixelRatio);
    const height = Math.round(this.frame.clientHeight * devicePixelRatio);
    // setting a size, even the same, makes the browser throw the canvas away
    if (this.canvas.width !== width) this.canvas.width = width;
    if (this.canvas.height !== height) this.canvas.height = height;
    const pen = this.canvas.getContext("2d")!;
    pen.resetTransform();
    pen.clearRect(0, 0, width, height);
    return pen;
  }
}

/** A line that shows on any ground: a thin one on a broader one. */
function stroke(
  pen: CanvasRenderingContext2D,
  path: Path2D,
  line: number,
  outer: string,
  inner: string,
): void {
  pen.lineJoin = "round";
  for (const [colour, width] of [[outer, 4], [inner, 2]] as const) {
    pen.strokeStyle = colour;
    pen.lineWidth = width * line;
    pen.stroke(path);
  }
}

function squarePath({ x, y, side }: Square): Path2D {
  const path = new Path2D();
  path.rect(x, y, side, side);
  return path;
}

/**
 * OpenSeadragon adds an inline style unless it finds its own, and the server's policy forbids
 * that: it finds an element of that name in no language, by which no browser styles anything.
 */
function keepStylesOut(): void {
  const mark = "data-openseadragon-mobile-css";
  if (document.querySelector(`[${mark}]`)) return;
  const stand = document.createElementNS("urn:sacmil", "style");
  stand.setAttribute(mark, "");
  document.head.append(stand);
}

function options(below: HTMLElement): OpenSeadragon.Options {
  return {
    element: below,
    drawer: "canvas",
    showNavigationControl: false,
    showNavigator: true,
    navigatorPosition: "TOP_RIGHT",
    navigatorSizeRatio: 0.14,
    navigatorMaintainSizeRatio: true,
    navigatorAutoFade: false,
    gestureSettingsMouse: { clickToZoom: false, dblClickToZoom: true },
    zoomPerScroll: 1.3,
    animationTime: matchMedia("(prefers-reduced-motion: reduce)").matches ? 0 : 0.5,
    springStiffness: 8,
    visibilityRatio: 0.4,
    minZoomImageRatio: 0.7,
    placeholderFillStyle: "#ffffff",
    imageLoaderLimit: 6,
    tileRetryMax: 4, // a busy server asks to come back later
    tileRetryDelay: 1000,
    maxImageCacheCount: 600,
  };
}
