// Which slides the list shows, and in which order.

import { findPrediction, type Results, type Slide } from "./server";

export type Column = "mark" | "slide" | "label" | "predicted" | "probability";

export interface Order {
  column: Column;
  descending: boolean;
}

export interface Filter {
  text: string;
  label: string;
  predicted: string;
  wrongOnly: boolean;
}

/** A row of the list: a slide with one model's prediction. */
export interface SlideRow {
  index: number;
  slide: Slide;
  predicted: string | null;
  /** Of the chosen class, or of the predicted one. */
  probability: number | null;
  /** Whether prediction and label agree; null if either is unknown. */
  isCorrect: boolean | null;
}

export function makeRows(results: Results, model: number, probabilityOf: string): SlideRow[] {
  return results.slides.map((slide, index) => {
    const prediction = findPrediction(slide, model);
    const predicted = prediction?.predicted ?? null;
    const at = results.classes.indexOf(probabilityOf || (predicted ?? ""));
    const known = slide.label !== null && predicted !== null;
    return {
      index,
      slide,
      predicted,
      probability: prediction?.probabilities[at] ?? null,
      isCorrect: known ? slide.label === predicted : null,
    };
  });
}

export function filterRows(rows: SlideRow[], filter: Filter): SlideRow[] {
  const words = filter.text.toLowerCase().split(/\s+/).filter(Boolean);
  return rows.filter(({ slide, predicted, isCorrect }) => {
    if (filter.label && slide.label !== filter.label) return false;
    if (filter.predicted && predicted !== filter.predicted) return false;
    if (filter.wrongOnly && isCorrect !== false) return false;
    const text = `${slide.slide_id} ${slide.label ?? ""} ${predicted ?? ""}`.toLowerCase();
    return words.every((word) => text.includes(word));
  });
}

/** Sort by a column. Unknown values come last both ways; ties keep the server's order. */
export function sortRows(rows: SlideRow[], order: Order | null): SlideRow[] {
  if (!order) return rows;
  const sign = order.descending ? -1 : 1;
  return [...rows].sort((one, other) => {
    const [a, b] = [sortKey(one, order.column), sortKey(other, order.column)];
    if (a === null || b === null) return Number(a === null) - Number(b === null);
    return sign * compareKeys(a, b) || one.index - other.index;
  });
}

function sortKey(row: SlideRow, column: Column): string | number | null {
  if (column === "mark") return row.isCorrect === null ? null : Number(row.isCorrect);
  if (column === "slide") return row.slide.slide_id;
  if (column === "label") return row.slide.label;
  return column === "predicted" ? row.predicted : row.probability;
}

const collator = new Intl.Collator("en", { numeric: true, sensitivity: "base" });

const compareKeys = (a: string | number, b: string | number) =>
  typeof a === "number" && typeof b === "number" ? a - b : collator.compare(String(a), String(b));
