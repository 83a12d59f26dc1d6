// Which slides the list shows, and in which order.

import { answerOf, type Results, type Slide } from "./server";

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

/** A slide as the list speaks of it, for one model. */
export interface Row {
  index: number;
  slide: Slide;
  predicted: string | null;
  /** Of the class asked for, or of the predicted one. */
  probability: number | null;
  /** Whether prediction and label agree, null where one of them is unknown. */
  right: boolean | null;
}

export function rowsOf(results: Results, model: number, probabilityOf: string): Row[] {
  return results.slides.map((slide, index) => {
    const answer = answerOf(slide, model);
    const predicted = answer?.predicted ?? null;
    const at = results.classes.indexOf(probabilityOf || (predicted ?? ""));
    const known = slide.label !== null && predicted !== null;
    return {
      index,
      slide,
      predicted,
      probability: answer?.probabilities[at] ?? null,
      right: known ? slide.label === predicted : null,
    };
  });
}

export function filtered(rows: Row[], filter: Filter): Row[] {
  const words = filter.text.toLowerCase().split(/\s+/).filter(Boolean);
  return rows.filter(({ slide, predicted, right }) => {
    if (filter.label && slide.label !== filter.label) return false;
    if (filter.predicted && predicted !== filter.predicted) return false;
    if (filter.wrongOnly && right !== false) return false;
    const text = `${slide.slide_id} ${slide.label ?? ""} ${predicted ?? ""}`.toLowerCase();
    return words.every((word) => text.includes(word));
  });
}

/** In the order of a column, what is unknown last whichever way; ties as the server lists them. */
export function ordered(rows: Row[], order: Order | null): Row[] {
  if (!order) return rows;
  const sign = order.descending ? -1 : 1;
  return [...rows].sort((one, other) => {
    const [a, b] = [keyOf(one, order.column), keyOf(other, order.column)];
    if (a === null || b === null) return Number(a === null) - Number(b === null);
    return sign * compared(a, b) || one.index - other.index;
  });
}

function keyOf(row: Row, column: Column): string | number | null {
  if (column === "mark") return row.right === null ? null : Number(row.right);
  if (column === "slide") return row.slide.slide_id;
  if (column === "label") return row.slide.label;
  return column === "predicted" ? row.predicted : row.probability;
}

const words = new Intl.Collator("en", { numeric: true, sensitivity: "base" });

const compared = (a: string | number, b: string | number) =>
  typeof a === "number" && typeof b === "number" ? a - b : words.compare(String(a), String(b));
