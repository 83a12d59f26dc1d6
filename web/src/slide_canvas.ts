// A zoomable slide and the layers over it: heatmap, outlines, marked tiles.

import OpenSeadragon from "openseadragon";

import type { HeatPicture } from "./heat_picture";
import type { Picture } from "./picture";
import { fetchErrorMessage } from "./server";
import type { View } from "./state";

export interface Square {
  x: number;
  y: number;
  side: number;
}

export interface SlideCanvasEvents {
  onMove: () => void;
  onTouch: () => void;
  onError: (message: string) => void;
}

const MARK_COLOR = "#ff2d55"; // neither in tissue nor on the colour scale
const MAX_ENLARGEMENT = 4; // screen pixels to a level-0 pixel

export class SlideCanvas {
  heat: HeatPicture | null = null;
  opacity = 0.5;
  outlines: Path2D | null = null;
  marked: Square | null = null;
  hovered: Square | null = null;
  private readonly viewer: OpenSeadragon.Viewer;
  private readonly canvas: HTMLCanvasElement;
  private size: [number, number] = [1, 1];
  private isOpen = false;
  /** Whether the slide is fitted to the frame; it then stays fitted when the frame is resized. */
  private isFitted = true;
  /** The view for which the layers were last drawn. */
  private lastSight = "";
  private pendingView: { view: View | null } | null = null;

  constructor(
    readonly frame: HTMLElement,
    private readonly events: SlideCanvasEvents,
  ) {
    const below = frame.appendChild(document.createElement("div"));
    below.className = "image";
    preventInlineStyles();
    this.viewer = OpenSeadragon(viewerOptions(below));
    this.canvas = document.createElement("canvas");
    this.canvas.className = "overlay";
    this.viewer.canvas.after(this.canvas); // above the slide, below its navigator
    this.listen();
    this.viewer.canvas.setAttribute("aria-label", "Slide: arrow keys pan, + and − zoom");
  }

  /** Show another picture, at a view or fitted to the frame. */
  open(picture: Picture, view: View | null): void {
    this.isOpen = false;
    this.setBusy(true);
    this.pendingView = { view };
    this.size = picture.size;
    // a coarse picture can be enlarged as much as the slide, to show single tiles
    const maxZoomPixelRatio = MAX_ENLARGEMENT * picture.downsample;
    Object.assign(this.viewer.viewport, { maxZoomPixelRatio });
    this.viewer.open({ tileSource: picture.source });
  }

  close(): void {
    this.isOpen = false;
    this.pendingView = null;
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
      if (this.pendingView) this.pendingView.view = view;
      return;
    }
    this.isFitted = false;
    const [width] = this.size;
    const middle = new OpenSeadragon.Point(view.x / width, view.y / width);
    this.viewer.viewport.zoomTo(width / view.width, undefined, how.atOnce);
    this.viewer.viewport.panTo(middle, how.atOnce);
  }

  fit(): void {
    this.isFitted = true;
    if (this.isOpen) this.viewer.viewport.goHome();
  }

  zoomBy(factor: number): void {
    if (!this.isOpen) return;
    this.isFitted = false;
    this.viewer.viewport.zoomBy(factor);
    this.viewer.viewport.applyConstraints();
  }

  /** Move by shares of the view. */
  panBy(across: number, down: number): void {
    if (!this.isOpen) return;
    this.isFitted = false;
    const seen = this.viewer.viewport.getBounds();
    this.viewer.viewport.panBy(
      new OpenSeadragon.Point(across * seen.width, down * seen.height),
    );
    this.viewer.viewport.applyConstraints();
  }

  /** The level-0 position under the pointer. */
  positionUnder(event: PointerEvent): [number, number] | null {
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
    const pen = this.clearCanvas();
    const view = this.view;
    if (!view) return;
    const zoom = this.canvas.width / view.width;
    const left = view.x - view.width / 2;
    const top = view.y - this.canvas.height / zoom / 2;
    this.heat?.draw(pen, left, top, zoom, this.opacity);
    pen.setTransform(zoom, 0, 0, zoom, -left * zoom, -top * zoom);
    const line = devicePixelRatio / zoom;
    if (this.outlines) strokePath(pen, this.outlines, line, "#ffffff", "#000000");
    if (this.hovered) strokePath(pen, squarePath(this.hovered), line * 0.75, "#000000", "#ffffff");
    if (this.marked) strokePath(pen, squarePath(this.marked), line * 1.5, "#ffffff", MARK_COLOR);
  }

  private handleOpen(): void {
    this.isOpen = true;
    const image = this.viewer.world.getItemAt(0);
    image.addHandler("fully-loaded-change", () => this.setBusy(!image.getFullyLoaded()));
    this.setBusy(!image.getFullyLoaded());
    const view = this.pendingView?.view;
    this.isFitted = !view;
    if (view) this.moveTo(view, { atOnce: true });
    else this.viewer.viewport.goHome(true);
    this.draw();
  }

  private listen(): void {
    this.viewer.addHandler("open", () => this.handleOpen());
    this.viewer.addHandler("open-failed", () =>
      this.events.onError("The picture could not be opened."),
    );
    this.viewer.addHandler("tile-load-failed", (event) => {
      void fetchErrorMessage(event.tile?.getUrl() ?? "").then((reason) => {
        if (reason) this.events.onError(reason);
      });
    });
    this.viewer.addHandler("update-viewport", () => {
      const { clientWidth, clientHeight } = this.frame;
      const sight = JSON.stringify([this.view, clientWidth, clientHeight]);
      if (sight === this.lastSight) return; // only a tile of the slide was loaded
      this.lastSight = sight;
      this.draw();
      this.events.onMove();
    });
    this.viewer.addHandler("resize", () => {
      // after OpenSeadragon's own zoom for the new size
      queueMicrotask(() => this.isFitted && this.isOpen && this.viewer.viewport.goHome(true));
    });
    // the page's own keys do more than OpenSeadragon's
    this.viewer.addHandler("canvas-key", (event) => {
      event.preventDefaultAction = true;
    });
    for (const touched of ["canvas-press", "canvas-scroll", "canvas-pinch"] as const) {
      this.viewer.addHandler(touched, () => {
        this.isFitted = false;
        this.events.onTouch();
      });
    }
  }

  private setBusy(busy: boolean): void {
    this.frame.setAttribute("aria-busy", String(busy));
  }

  private clearCanvas(): CanvasRenderingContext2D {
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

/** Draw a thin line on a broader one, visible on any background. */
function strokePath(
  pen: CanvasRenderingContext2D,
  path: Path2D,
  line: number,
  outer: string,
  inner: string,
): void {
  pen.lineJoin = "round";
  for (const [color, width] of [[outer, 4], [inner, 2]] as const) {
    pen.strokeStyle = color;
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
 * OpenSeadragon adds an inline style unless it finds an element that marks one, and the server's
 * policy forbids inline styles. A marked element in an unknown namespace styles nothing.
 */
function preventInlineStyles(): void {
  const mark = "data-openseadragon-mobile-css";
  if (document.querySelector(`[${mark}]`)) return;
  const stand = document.createElementNS("urn:sacmil", "style");
  stand.setAttribute(mark, "");
  document.head.append(stand);
}

function viewerOptions(below: HTMLElement): OpenSeadragon.Options {
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
    tileRetryMax: 4, // a busy server returns 503 with Retry-After
    tileRetryDelay: 1000,
    maxImageCacheCount: 600,
  };
}
