// A map of scores as one small picture, a few pixels to a tile, drawn enlarged without blur.
// However many tiles there are, a frame costs one drawImage.

import type { ScoreMap } from "./score_map";
import type { Colour } from "./server";
import type { Scale } from "./state";

const MOST_CELLS = 4096; // each way; browsers refuse much larger canvases
const FINEST = 16; // cells to the side of a tile

export class HeatPicture {
  private readonly picture = document.createElement("canvas");
  private readonly left: number;
  private readonly top: number;
  /** Side of a cell in level-0 pixels. */
  private readonly cell: number;

  constructor(
    private readonly map: ScoreMap,
    scale: Scale,
    colours: readonly Colour[],
  ) {
    const right = largest(map.x) + map.side;
    const bottom = largest(map.y) + map.side;
    this.left = smallest(map.x);
    this.top = smallest(map.y);
    const extent = Math.max(right - this.left, bottom - this.top);
    this.cell = Math.max(commonCell(map), map.side / FINEST, extent / MOST_CELLS);
    this.picture.width = Math.max(1, Math.ceil((right - this.left) / this.cell));
    this.picture.height = Math.max(1, Math.ceil((bottom - this.top) / this.cell));
    this.paint(scale, colours);
  }

  /**
   * Draw onto a canvas whose pixels begin at (x, y) of the slide and are worth 1 / zoom each.
   * Only cells in sight are enlarged: a whole map at full zoom is more than a canvas can place.
   */
  draw(pen: CanvasRenderingContext2D, x: number, y: number, zoom: number, opacity: number): void {
    const { width, height } = pen.canvas;
    const from = (start: number, origin: number) =>
      Math.max(0, Math.floor((start - origin) / this.cell));
    const to = (start: number, origin: number, pixels: number, cells: number) =>
      Math.min(cells, Math.ceil((start + pixels / zoom - origin) / this.cell));
    const [left, top] = [from(x, this.left), from(y, this.top)];
    const across = to(x, this.left, width, this.picture.width) - left;
    const down = to(y, this.top, height, this.picture.height) - top;
    if (across <= 0 || down <= 0) return;
    pen.save();
    pen.imageSmoothingEnabled = false;
    pen.globalAlpha = opacity;
    const size = this.cell * zoom;
    pen.drawImage(
      this.picture, left, top, across, down,
      (this.left - x) * zoom + left * size, (this.top - y) * zoom + top * size,
      across * size, down * size,
    );
    pen.restore();
  }

  /** Every cell gets the mean of the tiles that cover it. */
  private paint(scale: Scale, colours: readonly Colour[]): void {
    const { width, height } = this.picture;
    const total = new Float64Array(width * height);
    const count = new Uint16Array(width * height);
    for (let tile = 0; tile < this.map.count; tile++) {
      const place = this.map.place(tile, scale);
      this.eachCell(tile, (cell) => {
        total[cell]! += place;
        count[cell]!++;
      });
    }
    const pen = this.picture.getContext("2d")!;
    const pixels = pen.createImageData(width, height);
    const whole = new Uint32Array(pixels.data.buffer); // a pixel at a time, not a byte
    const palette = new Uint32Array(Uint8Array.from(colours.flatMap((c) => [...c, 255])).buffer);
    for (let cell = 0; cell < count.length; cell++) {
      if (!count[cell]) continue;
      const place = total[cell]! / count[cell]!;
      whole[cell] = palette[Math.floor(place * (colours.length - 1) + 0.5)]!;
    }
    pen.putImageData(pixels, 0, 0);
  }

  private eachCell(tile: number, visit: (cell: number) => void): void {
    const { width, height } = this.picture;
    const column = Math.round((this.map.x[tile]! - this.left) / this.cell);
    const row = Math.round((this.map.y[tile]! - this.top) / this.cell);
    // neighbours meet: the end of one is rounded as the beginning of the next
    const across = Math.round((this.map.x[tile]! + this.map.side - this.left) / this.cell);
    const down = Math.round((this.map.y[tile]! + this.map.side - this.top) / this.cell);
    for (let y = row; y < Math.min(height, Math.max(down, row + 1)); y++) {
      for (let x = column; x < Math.min(width, Math.max(across, column + 1)); x++) {
        visit(y * width + x);
      }
    }
  }
}

/** The largest side of which all tiles and distances are whole multiples, 0 where there is none. */
function commonCell(map: ScoreMap): number {
  let cell = map.side;
  for (let tile = 0; tile < map.count && cell >= map.side / FINEST; tile++) {
    cell = commonDivisor(cell, Math.abs(map.x[tile]! - map.x[0]!));
    cell = commonDivisor(cell, Math.abs(map.y[tile]! - map.y[0]!));
  }
  return cell;
}

function commonDivisor(one: number, other: number): number {
  while (other > 1e-6) [one, other] = [other, one % other];
  return one;
}

// Math.min(...numbers) overflows the stack at 100,000 tiles
const smallest = (numbers: readonly number[]) => numbers.reduce((a, b) => Math.min(a, b), Infinity);
const largest = (numbers: readonly number[]) => numbers.reduce((a, b) => Math.max(a, b), -Infinity);
