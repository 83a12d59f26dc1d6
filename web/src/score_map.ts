// Scores of one slide by one model: normalised, ranked, and found again by place.

import type { Scores } from "./server";
import type { Scale } from "./state";

export class ScoreMap {
  readonly side: number;
  /** Whether there are scores by class as well. */
  readonly hasClasses: boolean;
  readonly x: readonly number[];
  readonly y: readonly number[];
  /** Indices of tiles, the highest first; ties in the order of the bag. */
  readonly order: Uint32Array;
  /** Share of the other tiles that score lower, ties counted half. */
  private readonly ranks: Float64Array;
  /** How many tiles score higher, plus one. */
  private readonly positions: Uint32Array;
  private readonly corners = new Map<number, number[]>();

  constructor(
    { patch_size, x, y, class_scores }: Scores,
    readonly values: readonly number[],
    /** The class these scores are about; empty where one score serves all classes. */
    readonly scoreClass: string,
    private readonly predicted: string,
  ) {
    this.hasClasses = class_scores !== null;
    this.side = patch_size;
    this.x = x;
    this.y = y;
    this.order = Uint32Array.from(values, (_, index) => index).sort(
      (one, other) => values[other]! - values[one]! || one - other,
    );
    this.ranks = new Float64Array(values.length);
    this.positions = new Uint32Array(values.length);
    this.rank();
    for (let tile = 0; tile < x.length; tile++) this.remember(tile);
  }

  /** What is shown, for legends: the class, and whether it is the predicted one. */
  get about(): string {
    const { scoreClass } = this;
    return scoreClass && `score for ${scoreClass}${scoreClass === this.predicted ? " (predicted)" : ""}`;
  }

  get count(): number {
    return this.values.length;
  }

  get low(): number {
    return this.values[this.order[this.count - 1]!]!;
  }

  get high(): number {
    return this.values[this.order[0]!]!;
  }

  /** Where a tile lies on the colour scale, 0 to 1. */
  place(tile: number, scale: Scale): number {
    if (scale === "rank") return this.ranks[tile]!;
    const { low, high } = this;
    if (low === high) return 0.5;
    // halved first: the distance of two finite numbers may be infinite
    return (this.values[tile]! / 2 - low / 2) / (high / 2 - low / 2);
  }

  /** The tile's position among all, 1 for the highest; tiles that tie share one. */
  position(tile: number): number {
    return this.positions[tile]!;
  }

  /** The score that has a place on the colour scale. */
  valueAt(place: number, scale: Scale): number {
    if (scale === "minmax") return this.low + (this.high - this.low) * place;
    return this.values[this.order[Math.round((1 - place) * (this.count - 1))]!]!;
  }

  /** The highest tile that covers a place, -1 where there is none. */
  tileAt(x: number, y: number): number {
    const column = Math.floor(x / this.side);
    const row = Math.floor(y / this.side);
    let found = -1;
    for (const [right, down] of [[0, 0], [1, 0], [0, 1], [1, 1]] as const) {
      for (const tile of this.corners.get(cellKey(column - right, row - down)) ?? []) {
        const across = x - this.x[tile]!;
        const below = y - this.y[tile]!;
        const inside = across >= 0 && below >= 0 && across < this.side && below < this.side;
        if (inside && (found < 0 || this.values[tile]! > this.values[found]!)) found = tile;
      }
    }
    return found;
  }

  /** The highest tiles; of those that overlap the highest, a tenth of a side being rounding. */
  top(count: number): number[] {
    const taken: number[] = [];
    for (const tile of this.order) {
      if (taken.length === count) break;
      if (taken.every((earlier) => this.apart(tile, earlier) >= 0.9 * this.side)) taken.push(tile);
    }
    return taken;
  }

  private apart(one: number, other: number): number {
    return Math.max(
      Math.abs(this.x[one]! - this.x[other]!),
      Math.abs(this.y[one]! - this.y[other]!),
    );
  }

  private rank(): void {
    const { order, values, count } = this;
    for (let first = 0, next = 0; first < count; first = next) {
      while (next < count && values[order[next]!] === values[order[first]!]) next++;
      const lower = count - next + (next - first - 1) / 2;
      for (let at = first; at < next; at++) {
        this.ranks[order[at]!] = count > 1 ? lower / (count - 1) : 0.5;
        this.positions[order[at]!] = first + 1;
      }
    }
  }

  private remember(tile: number): void {
    const column = Math.floor(this.x[tile]! / this.side);
    const key = cellKey(column, Math.floor(this.y[tile]! / this.side));
    const here = this.corners.get(key);
    if (here) here.push(tile);
    else this.corners.set(key, [tile]);
  }
}

const cellKey = (column: number, row: number) => column * 2 ** 24 + row;
