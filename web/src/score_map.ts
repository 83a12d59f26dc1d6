// Scores of one slide by one model: normalised, ranked, and looked up by position.

import type { Color, Prediction, Results, Scores } from "./server";
import type { Scale } from "./state";

export class ScoreMap {
  readonly side: number;
  /** Whether there are scores by class as well. */
  readonly hasClasses: boolean;
  readonly x: readonly number[];
  readonly y: readonly number[];
  /** Whether scores add to a value or take from it: then colours are centered on zero. */
  readonly isDiverging: boolean;
  /** The colours, that of the lowest score first. */
  readonly colors: readonly Color[];
  /** Indices of tiles, the highest first; ties in the order of the bag. */
  readonly order: Uint32Array;
  /** Share of the other tiles that score lower, ties counted half. */
  private readonly rankShares: Float64Array;
  /** How many tiles score higher, plus one. */
  private readonly tileRanks: Uint32Array;
  /** What tiles do whose diverging scores are above zero, and below. */
  readonly effects: readonly [string, string];
  /** Whether the scores are for the class that is predicted. */
  private readonly isPredicted: boolean;
  private readonly corners = new Map<number, number[]>();

  constructor(
    { diverging, colors, diverging_colors, has_classes, score_effects }: Results,
    { patch_size, x, y, scores, class_scores }: Scores,
    readonly values: readonly number[],
    /** The class these scores are for; empty if one score serves all classes. */
    readonly scoreClass: string,
    { predicted, spread }: Prediction,
  ) {
    this.hasClasses = class_scores !== null;
    this.isPredicted = has_classes && scoreClass === predicted;
    this.effects = score_effects[scoreClass] ?? ["", ""];
    this.side = patch_size;
    this.x = x;
    this.y = y;
    // a score for all classes, such as attention, adds to nothing; nor do the ranks that ensembles
    // of earlier versions wrote, which are never negative
    const every = class_scores ? Object.values(class_scores) : [scores];
    const isSigned = spread === null || every.some((some) => some.some((score) => score < 0));
    this.isDiverging = diverging && scoreClass !== "" && isSigned;
    this.colors = this.isDiverging ? diverging_colors : colors;
    this.order = Uint32Array.from(values, (_, index) => index).sort(
      (one, other) => values[other]! - values[one]! || one - other,
    );
    this.rankShares = new Float64Array(values.length);
    this.tileRanks = new Uint32Array(values.length);
    this.computeRanks();
    for (let tile = 0; tile < x.length; tile++) this.indexTile(tile);
  }

  /** What a high score means: the class, or what the tile does; for captions. */
  get description(): string {
    const { scoreClass } = this;
    const [above, below] = this.effects;
    if (this.isDiverging) return `${above} (red) or ${below} (blue)`;
    const suffix = this.isPredicted ? " (predicted)" : "";
    return scoreClass && `score for ${scoreClass}${suffix}`;
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

  /** The largest score without its sign. */
  get largest(): number {
    return Math.max(Math.abs(this.low), Math.abs(this.high));
  }

  /** The position of a tile on the colour scale, 0 to 1; zero of diverging scores is at 0.5. */
  scalePosition(tile: number, scale: Scale): number {
    if (this.isDiverging) return 0.5 + this.values[tile]! / this.largest / 2;
    if (scale === "rank") return this.rankShare(tile);
    const { low, high } = this;
    if (low === high) return 0.5;
    // halved first: the difference of two finite numbers may be infinite
    return (this.values[tile]! / 2 - low / 2) / (high / 2 - low / 2);
  }

  /** The share of the other tiles that score lower, ties counted half. */
  rankShare(tile: number): number {
    return this.rankShares[tile]!;
  }

  /** The tile's rank, 1 for the highest score; ties share a rank. */
  rankOf(tile: number): number {
    return this.tileRanks[tile]!;
  }

  /** The score at a position of the colour scale. */
  scoreAt(position: number, scale: Scale): number {
    if (this.isDiverging) return (2 * position - 1) * this.largest;
    if (scale === "minmax") return this.low + (this.high - this.low) * position;
    return this.values[this.order[Math.round((1 - position) * (this.count - 1))]!]!;
  }

  /** The tile with the highest score that covers a position; -1 if there is none. */
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

  /** The tiles with the highest scores that do not overlap; a tenth of a side may be rounding. */
  findTopTiles(count: number): number[] {
    const taken: number[] = [];
    for (const tile of this.order) {
      if (taken.length === count) break;
      const isFree = taken.every((earlier) => this.distance(tile, earlier) >= 0.9 * this.side);
      if (isFree) taken.push(tile);
    }
    return taken;
  }

  private distance(one: number, other: number): number {
    return Math.max(
      Math.abs(this.x[one]! - this.x[other]!),
      Math.abs(this.y[one]! - this.y[other]!),
    );
  }

  private computeRanks(): void {
    const { order, values, count } = this;
    for (let first = 0, next = 0; first < count; first = next) {
      while (next < count && values[order[next]!] === values[order[first]!]) next++;
      const lower = count - next + (next - first - 1) / 2;
      for (let at = first; at < next; at++) {
        this.rankShares[order[at]!] = count > 1 ? lower / (count - 1) : 0.5;
        this.tileRanks[order[at]!] = first + 1;
      }
    }
  }

  private indexTile(tile: number): void {
    const column = Math.floor(this.x[tile]! / this.side);
    const key = cellKey(column, Math.floor(this.y[tile]! / this.side));
    const here = this.corners.get(key);
    if (here) here.push(tile);
    else this.corners.set(key, [tile]);
  }
}

const cellKey = (column: number, row: number) => column * 2 ** 24 + row;
