// A map of scores as one small picture, a few pixels to a tile, drawn enlarged without blur.
// However many tiles there are, a frame costs one drawImage.

import type { ScoreMap } from "./score_map";
import type { Scale } from "./state";

const MAX_CELLS = 4096; // each way; browsers reject much larger canvases
const MAX_CELLS_PER_TILE = 16; // cells to the side of a tile

export class HeatPicture {
  private readonly picture = document.createElement("canvas");
  private readonly left: number;
  private readonly top: number;
  /** Side of a cell in level-0 pixels. */
  private readonly cell: number;

  constructor(
    private readonly map: ScoreMap,
    scale: Scale,
  ) {
    const right = largest(map.x) + map.side;
    const bottom = largest(map.y) + map.side;
    this.left = smallest(map.x);
    this.top = smallest(map.y);
    const extent = Math.max(right - this.left, bottom - this.top);
    this.cell = Math.max(commonCell(map), map.side / MAX_CELLS_PER_TILE, extent / MAX_CELLS);
    this.picture.width = Math.max(1, Math.ceil((right - this.left) / this.cell));
    this.picture.height = Math.max(1, Math.ceil((bottom - this.top) / this.cell));
    this.paint(scale);
  }

  /**
   * Draw onto a canvas that starts at (x, y) of the slide; a pixel covers 1 / zoom level-0 pixels.
   * Only visible cells are enlarged: a whole map at full zoom exceeds what a canvas can hold.
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

  /** Give every cell the mean of the tiles that cover it. */
  private paint(scale: Scale): void {
    const { colors } = this.map;
    const { width, height } = this.picture;
    const total = new Float64Array(width * height);
    const count = new Uint16Array(width * height);
    for (let tile = 0; tile < this.map.count; tile++) {
      const position = this.map.scalePosition(tile, scale);
      this.forEachCell(tile, (cell) => {
        total[cell]! += position;
        count[cell]!++;
      });
    }
    const pen = this.picture.getContext("2d")!;
    const pixels = pen.createImageData(width, height);
    const packed = new Uint32Array(pixels.data.buffer); // a pixel at a time, not a byte
    const palette = new Uint32Array(Uint8Array.from(colors.flatMap((c) => [...c, 255])).buffer);
    for (let cell = 0; cell < count.length; cell++) {
      if (!count[cell]) continue;
      const position = total[cell]! / count[cell]!;
      packed[cell] = palette[Math.floor(position * (colors.length - 1) + 0.5)]!;
    }
    pen.putImageData(pixels, 0, 0);
  }

  private forEachCell(tile: number, visit: (cell: number) => void): void {
    const { width, height } = this.picture;
    const column = Math.round((this.map.x[tile]! - this.left) / this.cell);
    const row = Math.round((this.map.y[tile]! - this.top) / this.cell);
    // neighbours meet: a tile's end is rounded like the start of the next
    const across = Math.round((this.map.x[tile]! + this.map.side - this.left) / this.cell);
    const down = Math.round((this.map.y[tile]! + this.map.side - this.top) / this.cell);
    for (let y = row; y < Math.min(height, Math.max(down, row + 1)); y++) {
      for (let x = column; x < Math.min(width, Math.max(across, column + 1)); x++) {
        visit(y * width + x);
      }
    }
  }
}

/** The largest side that divides all tiles and distances; 0 if there is none. */
function commonCell(map: ScoreMap): number {
  let cell = map.side;
  for (let tile = 0; tile < map.count && cell >= map.side / MAX_CELLS_PER_TILE; tile++) {
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
