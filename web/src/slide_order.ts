// Which slides the list shows, and in which order.

import { findPrediction, type Results, type Slide } from "./server";

export type Column = "mark" | "slide" | "label" | "predicted" | "value";

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
  /** Of the chosen name, or the first of the prediction. */
  value: number | null;
  /** Whether prediction and label agree; null if either is unknown or no level. */
  isCorrect: boolean | null;
  /** By what labels and predictions are sorted. */
  labelKey: Key;
  predictedKey: Key;
}

type Key = string | number | null;

export function makeRows(results: Results, model: number, valueName: string): SlideRow[] {
  return results.slides.map((slide, index) => {
    const prediction = findPrediction(slide, model);
    const predicted = prediction?.predicted ?? null;
    const [first] = prediction?.choices ?? [];
    const shown = valueName ? prediction?.choices.find(({ name }) => name === valueName) : first;
    const known = slide.label !== null && predicted !== null && results.levels.length > 0;
    return {
      index,
      slide,
      predicted,
      value: shown?.value ?? null,
      isCorrect: known ? slide.label === predicted : null,
      labelKey: makeKey(results, slide.label),
      predictedKey: results.are_probabilities
        ? makeKey(results, predicted)
        : (first?.value ?? null),
    };
  });
}

/** Levels with an order are sorted by it, and numbers by size; all else is text. */
function makeKey({ levels, has_classes }: Results, text: string | null): Key {
  if (text === null || has_classes) return text;
  if (levels.includes(text)) return levels.indexOf(text);
  return isNumber(text) ? Number(text) : text;
}

/** The different texts, if there are few and they are no numbers: those a filter can offer. */
export function listOptions(texts: (string | null)[]): string[] {
  const found = [...new Set(texts)].filter((text) => text !== null).sort();
  const areNumbers = found.every((text) => text.split(", ").every(isNumber));
  return found.length > MAX_OPTIONS || areNumbers ? [] : found;
}

const MAX_OPTIONS = 20;

const isNumber = (text: string) => text.trim() !== "" && Number.isFinite(Number(text));

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

function sortKey(row: SlideRow, column: Column): Key {
  if (column === "mark") return row.isCorrect === null ? null : Number(row.isCorrect);
  if (column === "slide") return row.slide.slide_id;
  if (column === "label") return row.labelKey;
  return column === "predicted" ? row.predictedKey : row.value;
}

const collator = new Intl.Collator("en", { numeric: true, sensitivity: "base" });

const compareKeys = (a: string | number, b: string | number) =>
  typeof a === "number" && typeof b === "number" ? a - b : collator.compare(String(a), String(b));
