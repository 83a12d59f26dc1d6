// The picture below the scores: the slide, else its thumbnail, else a blank canvas.

import { toSentence } from "./format";
import type { ScoreMap } from "./score_map";
import { thumbnailUrl, tileUrl, type Slide, type SlideImage } from "./server";

export interface Picture {
  /** Width and height in level-0 pixels. */
  size: [number, number];
  /** Microns per level-0 pixel. */
  mpp: number | null;
  /** What OpenSeadragon opens. */
  source: object;
  /** Level-0 pixels per pixel of the source's finest level. */
  downsample: number;
  /** Cuts a square from it, for the top tiles; null if the picture is blank. */
  crop: Crop | null;
  /** Why the slide cannot be shown; empty if it can. */
  note: string;
}

type Crop = (x: number, y: number, side: number, pixels: number) => Promise<HTMLCanvasElement>;

/** Load the best picture of a slide. If its size is unknown, the map's extent is used. */
export async function loadPicture(
  index: number,
  slide: Slide,
  image: SlideImage,
  map: ScoreMap | null,
): Promise<Picture> {
  const size = image.size ?? slide.size ?? findExtent(map);
  const mpp = image.mpp ?? slide.mpp;
  if (image.zoomable && size) return makeDeepZoom(index, image, size, mpp);
  const note = toSentence(image.reason ?? slide.reason ?? "the slide itself cannot be shown");
  const known = image.size ?? slide.size;
  const placeable = slide.thumbnail && (known || !map);
  const thumbnail = placeable ? await loadImage(thumbnailUrl(index)) : null;
  if (thumbnail) {
    const natural: [number, number] = [thumbnail.naturalWidth, thumbnail.naturalHeight];
    return {
      ...makeStillPicture(thumbnail, thumbnail.src, known ?? natural),
      mpp,
      note: `${note} Showing its thumbnail.`,
    };
  }
  const blank = makeBlankCanvas(size ?? [4, 3]);
  const picture = makeStillPicture(blank, blank.toDataURL(), size ?? [4, 3]);
  return { ...picture, mpp, crop: null, note: map ? `${note} Showing its tiles on white.` : note };
}

function makeDeepZoom(
  index: number,
  image: SlideImage,
  size: [number, number],
  mpp: number | null,
): Picture {
  const highest = image.levels - 1;
  const url = (level: number, x: number, y: number) => tileUrl(index, level, x, y);
  const source = {
    width: size[0],
    height: size[1],
    tileSize: image.tile,
    tileOverlap: 0,
    minLevel: Math.min(highest, Math.floor(Math.log2(image.tile))),
    maxLevel: highest,
    getTileUrl: url,
  };
  const tiles = new Map<string, Promise<HTMLImageElement | null>>(); // neighbours share them
  const tile = (url: string) => {
    if (!tiles.has(url)) tiles.set(url, loadImage(url));
    return tiles.get(url)!;
  };
  const crop = async (x: number, y: number, side: number, pixels: number) => {
    const halvings = Math.floor(Math.log2(Math.max(1, side / pixels)));
    const level = Math.max(0, highest - halvings);
    const shrink = 2 ** (highest - level);
    return cropTiles(image.tile, [x / shrink, y / shrink, side / shrink], pixels, (column, row) =>
      tile(url(level, column, row)),
    );
  };
  return { size, mpp, source, downsample: 1, crop, note: "" };
}

/** Cut a square of a level from the tiles it overlaps. */
async function cropTiles(
  tile: number,
  [x, y, side]: [number, number, number],
  pixels: number,
  load: (column: number, row: number) => Promise<HTMLImageElement | null>,
): Promise<HTMLCanvasElement> {
  const canvas = makeSquareCanvas(pixels);
  const pen = canvas.getContext("2d")!;
  const zoom = pixels / side;
  const draws: Promise<void>[] = [];
  for (let row = Math.max(0, Math.floor(y / tile)); row * tile < y + side; row++) {
    for (let column = Math.max(0, Math.floor(x / tile)); column * tile < x + side; column++) {
      draws.push(
        load(column, row).then((image) => {
          if (!image) return;
          const [left, top] = [(column * tile - x) * zoom, (row * tile - y) * zoom];
          pen.drawImage(image, left, top, image.naturalWidth * zoom, image.naturalHeight * zoom);
        }),
      );
    }
  }
  await Promise.all(draws);
  return canvas;
}

/** Make a picture from one image, stretched to the size of the slide. */
function makeStillPicture(
  image: HTMLImageElement | HTMLCanvasElement,
  url: string,
  size: [number, number],
) {
  const shrink = size[0] / image.width;
  const crop = async (x: number, y: number, side: number, pixels: number) => {
    const canvas = makeSquareCanvas(pixels);
    const pen = canvas.getContext("2d")!;
    const part = side / shrink;
    pen.drawImage(image, x / shrink, y / shrink, part, part, 0, 0, pixels, pixels);
    return canvas;
  };
  return { size, source: { type: "image", url, buildPyramid: false }, downsample: shrink, crop };
}

function makeBlankCanvas([width, height]: [number, number]): HTMLCanvasElement {
  const canvas = document.createElement("canvas");
  const shrink = Math.max(width, height) / 512;
  canvas.width = Math.max(1, Math.round(width / shrink));
  canvas.height = Math.max(1, Math.round(height / shrink));
  const pen = canvas.getContext("2d")!;
  pen.fillStyle = "#ffffff";
  pen.fillRect(0, 0, canvas.width, canvas.height);
  return canvas;
}

function makeSquareCanvas(pixels: number): HTMLCanvasElement {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = pixels;
  return canvas;
}

function loadImage(url: string): Promise<HTMLImageElement | null> {
  return new Promise((resolve) => {
    const image = new Image();
    image.fetchPriority = "low"; // the visible part of the slide comes first
    image.onload = () => resolve(image);
    image.onerror = () => resolve(null);
    image.src = url;
  });
}

function findExtent(map: ScoreMap | null): [number, number] | null {
  if (!map) return null;
  const largest = (values: readonly number[]) => values.reduce((a, b) => Math.max(a, b), 0);
  return [largest(map.x) + map.side, largest(map.y) + map.side];
}
