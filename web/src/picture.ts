// What stands below the scores: the slide itself, else its thumbnail, else bare glass.

import { sentence } from "./words";
import type { ScoreMap } from "./score_map";
import { thumbnailAddress, tileAddress, type Slide, type SlideImage } from "./server";

export interface Picture {
  /** Width and height in level-0 pixels. */
  size: [number, number];
  /** Microns per level-0 pixel. */
  mpp: number | null;
  /** What OpenSeadragon opens. */
  source: object;
  /** How many level-0 pixels a pixel of the source's finest level is worth. */
  coarseness: number;
  /** A square cut from it, for the strip of top tiles; null where it would be bare glass. */
  crop: Crop | null;
  /** A sentence where the slide itself cannot be shown. */
  note: string;
}

type Crop = (x: number, y: number, side: number, pixels: number) => Promise<HTMLCanvasElement>;

/** The best there is of a slide; the map says how far it reaches where nothing else does. */
export async function slidePicture(
  index: number,
  slide: Slide,
  image: SlideImage,
  map: ScoreMap | null,
): Promise<Picture> {
  const size = image.size ?? slide.size ?? extent(map);
  const mpp = image.mpp ?? slide.mpp;
  if (image.zoomable && size) return deepZoom(index, image, size, mpp);
  const note = sentence(image.why_not ?? slide.why_not ?? "the slide itself cannot be shown");
  const known = image.size ?? slide.size;
  const placeable = slide.thumbnail && (known || !map);
  const thumbnail = placeable ? await loaded(thumbnailAddress(index)) : null;
  if (thumbnail) {
    const natural: [number, number] = [thumbnail.naturalWidth, thumbnail.naturalHeight];
    return {
      ...still(thumbnail, thumbnail.src, known ?? natural),
      mpp,
      note: `${note} Shown is its thumbnail.`,
    };
  }
  const bare = glass(size ?? [4, 3]);
  const what = map ? " Shown are its tiles on white." : "";
  return { ...still(bare, bare.toDataURL(), size ?? [4, 3]), mpp, crop: null, note: note + what };
}

function deepZoom(
  index: number,
  image: SlideImage,
  size: [number, number],
  mpp: number | null,
): Picture {
  const highest = image.levels - 1;
  const address = (level: number, x: number, y: number) => tileAddress(index, level, x, y);
  const source = {
    width: size[0],
    height: size[1],
    tileSize: image.tile,
    tileOverlap: 0,
    minLevel: Math.min(highest, Math.floor(Math.log2(image.tile))),
    maxLevel: highest,
    getTileUrl: address,
  };
  const tiles = new Map<string, Promise<HTMLImageElement | null>>(); // neighbours share them
  const tile = (url: string) => {
    if (!tiles.has(url)) tiles.set(url, loaded(url));
    return tiles.get(url)!;
  };
  const crop = async (x: number, y: number, side: number, pixels: number) => {
    const halvings = Math.floor(Math.log2(Math.max(1, side / pixels)));
    const level = Math.max(0, highest - halvings);
    const shrink = 2 ** (highest - level);
    return cropped(image.tile, [x / shrink, y / shrink, side / shrink], pixels, (column, row) =>
      tile(address(level, column, row)),
    );
  };
  return { size, mpp, source, coarseness: 1, crop, note: "" };
}

/** A square of a level, put together from the tiles it lies on. */
async function cropped(
  tile: number,
  [x, y, side]: [number, number, number],
  pixels: number,
  load: (column: number, row: number) => Promise<HTMLImageElement | null>,
): Promise<HTMLCanvasElement> {
  const canvas = square(pixels);
  const pen = canvas.getContext("2d")!;
  const zoom = pixels / side;
  const pieces: Promise<void>[] = [];
  for (let row = Math.max(0, Math.floor(y / tile)); row * tile < y + side; row++) {
    for (let column = Math.max(0, Math.floor(x / tile)); column * tile < x + side; column++) {
      pieces.push(
        load(column, row).then((image) => {
          if (!image) return;
          const [left, top] = [(column * tile - x) * zoom, (row * tile - y) * zoom];
          pen.drawImage(image, left, top, image.naturalWidth * zoom, image.naturalHeight * zoom);
        }),
      );
    }
  }
  await Promise.all(pieces);
  return canvas;
}

/** A picture of one piece, stretched to the size of the slide. */
function still(image: HTMLImageElement | HTMLCanvasElement, url: string, size: [number, number]) {
  const shrink = size[0] / image.width;
  const crop = async (x: number, y: number, side: number, pixels: number) => {
    const canvas = square(pixels);
    const pen = canvas.getContext("2d")!;
    const piece = side / shrink;
    pen.drawImage(image, x / shrink, y / shrink, piece, piece, 0, 0, pixels, pixels);
    return canvas;
  };
  return { size, source: { type: "image", url, buildPyramid: false }, coarseness: shrink, crop };
}

function glass([width, height]: [number, number]): HTMLCanvasElement {
  const canvas = document.createElement("canvas");
  const shrink = Math.max(width, height) / 512;
  canvas.width = Math.max(1, Math.round(width / shrink));
  canvas.height = Math.max(1, Math.round(height / shrink));
  const pen = canvas.getContext("2d")!;
  pen.fillStyle = "#ffffff";
  pen.fillRect(0, 0, canvas.width, canvas.height);
  return canvas;
}

function square(pixels: number): HTMLCanvasElement {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = pixels;
  return canvas;
}

function loaded(address: string): Promise<HTMLImageElement | null> {
  return new Promise((resolve) => {
    const image = new Image();
    image.fetchPriority = "low"; // what is in sight comes first
    image.onload = () => resolve(image);
    image.onerror = () => resolve(null);
    image.src = address;
  });
}

function extent(map: ScoreMap | null): [number, number] | null {
  if (!map) return null;
  const most = (places: readonly number[]) => places.reduce((a, b) => Math.max(a, b), 0);
  return [most(map.x) + map.side, most(map.y) + map.side];
}
