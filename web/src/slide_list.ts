// The list of slides with labels and predictions, sorted and filtered.

import { getElement, makeElement, makeOption } from "./element";
import { formatCount, formatNumber, formatPlural, formatWholePercent } from "./format";
import type { Results } from "./server";
import { filterRows, listOptions, makeRows, sortRows } from "./slide_order";
import type { Column, Order, SlideRow } from "./slide_order";
import type { Store } from "./state";
import { makeProbabilityBar } from "./prediction_bar";

/** Longer lists are made in part: the visible rows and some around them. */
const MAX_WHOLE_LIST = 200;
const ROWS_AROUND = 30;

export class SlideList {
  private readonly body = getElement("slide-table").querySelector("tbody")!;
  private readonly frame = getElement("slide-table-frame");
  private readonly text = getElement<HTMLInputElement>("filter-text");
  private readonly label = getElement<HTMLSelectElement>("filter-label");
  private readonly predicted = getElement<HTMLSelectElement>("filter-predicted");
  private readonly wrong = getElement<HTMLInputElement>("filter-wrong");
  private readonly valueName = getElement<HTMLSelectElement>("value-of");
  private order: Order | null = null;
  private visibleRows: SlideRow[] = [];
  /** The range of visibleRows that is in the page; end is exclusive. */
  private first = 0;
  private end = 0;

  constructor(
    private readonly results: Results,
    private readonly store: Store,
  ) {
    this.fillChoices();
    this.nameColumns();
    for (const control of [this.text, this.label, this.predicted, this.wrong, this.valueName]) {
      control.addEventListener("input", () => this.render());
    }
    for (const head of this.findHeads()) head.addEventListener("click", () => this.sortBy(head));
    this.body.addEventListener("click", (event) => this.handleClick(event));
    this.frame.addEventListener("scroll", () => this.updateRows());
    new ResizeObserver(() => this.updateRows()).observe(this.frame);
    store.onChange((_, changed) => {
      if (changed.has("models") || changed.has("active")) this.render();
      else if (changed.has("slide")) this.scrollToSelected();
    });
    this.render();
  }

  /** Choose the slide a number of rows further down. */
  step(by: number): void {
    const here = this.visibleRows.findIndex((row) => row.index === this.store.current.slide);
    const next = this.visibleRows[here < 0 ? 0 : Math.max(0, here + by)];
    if (next) this.store.change({ slide: next.index });
  }

  focusFilter(): void {
    this.text.focus();
    this.text.select();
  }

  /** Offer what there is to choose, and hide filters without a choice. */
  private fillChoices(): void {
    const { levels, has_classes, choices, are_probabilities, are_percentages, slides } =
      this.results;
    const named = (names: string[]) => names.map((name) => makeOption(name, name));
    const texts = slides.map((slide) => slide.label);
    const labels = [...new Set(texts)].filter((name) => name !== null).sort();
    if (levels.length && !has_classes) {
      labels.sort((one, other) => levels.indexOf(one) - levels.indexOf(other));
    }
    const offered = levels.length ? labels : listOptions(texts);
    this.label.append(makeOption("", "Any label"), ...named(offered));
    this.label.hidden = !levels.length && offered.length < 2;
    const predictions = slides.flatMap((slide) => slide.predictions.map((one) => one.predicted));
    const predicted = levels.length ? levels : listOptions(predictions);
    this.predicted.append(makeOption("", "Any prediction"), ...named(predicted));
    this.predicted.hidden = !levels.length && predicted.length < 2;
    if (are_probabilities) {
      this.valueName.append(makeOption("", levels.length ? "P of predicted" : "Highest P"));
    }
    const of = are_percentages ? "" : are_probabilities ? "P of " : "Value of ";
    this.valueName.append(...choices.map((name) => makeOption(name, of + name)));
    this.valueName.hidden = !are_probabilities && choices.length < 2;
    this.label.disabled = this.wrong.disabled = !labels.length;
    this.wrong.parentElement!.hidden = !levels.length;
  }

  /** Hide columns that would be empty, or repeat another. */
  private nameColumns(): void {
    const { levels, choices, are_probabilities } = this.results;
    const { classList } = getElement("slide-table");
    classList.toggle("no-mark", !levels.length);
    classList.toggle("no-value", !are_probabilities && choices.length < 2);
    if (are_probabilities) return;
    const value = document.querySelector<HTMLElement>("#slide-table th[data-column=value] button")!;
    value.textContent = value.title = "Value";
  }

  private findHeads(): HTMLElement[] {
    return [...document.querySelectorAll<HTMLElement>("#slide-table th")];
  }

  /** Sort by a column: ascending, then descending, then as listed. */
  private sortBy(head: HTMLElement): void {
    const column = head.dataset["column"] as Column;
    if (this.order?.column !== column) this.order = { column, descending: false };
    else this.order = this.order.descending ? null : { column, descending: true };
    this.render();
  }

  private handleClick(event: Event): void {
    const row = (event.target as HTMLElement).closest("tr");
    if (row) this.store.change({ slide: Number(row.dataset["slide"]) });
  }

  private render(): void {
    const { models, active } = this.store.current;
    const rows = makeRows(this.results, models[active], this.valueName.value);
    const filter = {
      text: this.text.value,
      label: this.label.value,
      predicted: this.predicted.value,
      wrongOnly: this.wrong.checked,
    };
    this.visibleRows = sortRows(filterRows(rows, filter), this.order);
    this.makeRows(0);
    if (!this.visibleRows.length) this.body.append(makeEmptyRow());
    getElement("slide-table").setAttribute("aria-rowcount", String(this.visibleRows.length + 1));
    this.countSlides(rows.length);
    this.showSortOrder();
    this.scrollToSelected();
  }

  private countSlides(all: number): void {
    const judged = this.visibleRows.filter((row) => row.isCorrect !== null);
    const wrong = judged.filter((row) => row.isCorrect === false).length;
    const { length } = this.visibleRows;
    const share = length < all ? `${formatCount(length)} of ` : "";
    const errors = `${formatCount(wrong)} of ${formatCount(judged.length)} labelled slides`;
    const summary = judged.length ? ` · ${errors} misclassified` : "";
    getElement("slide-counts").textContent = share + formatPlural(all, "slide") + summary;
  }

  private showSortOrder(): void {
    for (const head of this.findHeads()) {
      const here = this.order?.column === head.dataset["column"];
      const direction = this.order?.descending ? "descending" : "ascending";
      head.setAttribute("aria-sort", here ? direction : "none");
    }
  }

  private scrollToSelected(): void {
    const at = this.visibleRows.findIndex((row) => row.index === this.store.current.slide);
    if (at >= 0 && (at < this.first || at >= this.end)) {
      this.makeRows(at);
      this.frame.scrollTop = at * this.rowHeight();
    }
    this.markSelectedRow()?.scrollIntoView({ block: "nearest" });
  }

  /** Mark the row of the slide that is open, if it is in the page. */
  private markSelectedRow(): HTMLElement | null {
    this.body.querySelector("[aria-selected=true]")?.setAttribute("aria-selected", "false");
    const row = document.getElementById(rowId(this.store.current.slide));
    row?.setAttribute("aria-selected", "true");
    this.frame.setAttribute("aria-activedescendant", row?.id ?? "");
    return row;
  }

  /** Make other rows when the user scrolls past those in the page. */
  private updateRows(): void {
    const height = this.rowHeight();
    const top = Math.floor(this.frame.scrollTop / height);
    const bottom = Math.ceil((this.frame.scrollTop + this.frame.clientHeight) / height);
    const isCovered = top >= this.first && Math.min(bottom, this.visibleRows.length) <= this.end;
    if (isCovered || this.visibleRows.length <= MAX_WHOLE_LIST) return;
    this.makeRows(top);
    this.markSelectedRow();
  }

  /** Put the rows around one into the page; padding replaces the others. */
  private makeRows(top: number): void {
    const count = this.visibleRows.length;
    const isWhole = count <= MAX_WHOLE_LIST;
    const inSight = Math.ceil(this.frame.clientHeight / this.rowHeight());
    this.first = isWhole ? 0 : Math.max(0, top - ROWS_AROUND);
    this.end = isWhole ? count : Math.min(count, top + inSight + ROWS_AROUND);
    const rows = this.visibleRows.slice(this.first, this.end);
    this.body.replaceChildren(...rows.map((row, at) => this.makeTableRow(row, this.first + at)));
    this.body.style.paddingTop = `${this.first * this.rowHeight()}px`;
    this.body.style.paddingBottom = `${(count - this.end) * this.rowHeight()}px`;
  }

  private makeTableRow(row: SlideRow, at: number): HTMLTableRowElement {
    const line = makeElement("tr");
    line.setAttribute("aria-rowindex", String(at + 2)); // the head is the first
    line.id = rowId(row.index);
    line.dataset["slide"] = String(row.index);
    line.setAttribute("role", "row"); // a table laid out as a grid is no table to a screen reader
    line.setAttribute("aria-selected", "false");
    line.append(makeMarkCell(row.isCorrect), makeTextCell(row.slide.slide_id, "name"));
    line.append(makeTextCell(row.slide.label), makeTextCell(row.predicted));
    line.append(makeValueCell(row, this.results));
    for (const cell of line.children) cell.setAttribute("role", "gridcell");
    return line;
  }

  private rowHeight(): number {
    return this.body.querySelector("tr[data-slide]")?.getBoundingClientRect().height || 40;
  }
}

const rowId = (slide: number) => `slide-${slide}`;

function makeMarkCell(isCorrect: boolean | null): HTMLElement {
  const cell = makeElement("td", isCorrect === null ? "" : isCorrect ? "right" : "wrong");
  cell.textContent = isCorrect === null ? "" : isCorrect ? "✓" : "✗";
  const relation = isCorrect ? "agrees with" : "differs from";
  cell.title =
    isCorrect === null
      ? "no label or no prediction to compare"
      : `prediction ${relation} the label`;
  cell.setAttribute("aria-label", cell.title);
  return cell;
}

function makeTextCell(text: string | null, className = ""): HTMLElement {
  const cell = makeElement("td", text === null ? "unknown" : className, text ?? "–");
  cell.title = text ?? "unknown";
  return cell;
}

function makeValueCell({ value }: SlideRow, results: Results): HTMLElement {
  if (value === null) return makeTextCell(null);
  const cell = makeElement("td", "value");
  const { are_probabilities, are_percentages } = results;
  if (are_probabilities || are_percentages) cell.append(makeProbabilityBar(value));
  const number = are_probabilities ? value.toFixed(2) : formatNumber(value);
  cell.append(makeElement("span", "", are_percentages ? formatWholePercent(value) : number));
  cell.title = String(value);
  return cell;
}

function makeEmptyRow(): HTMLElement {
  const line = makeElement("tr", "nothing");
  const cell = makeElement("td", "", "No slide matches the filter.");
  cell.colSpan = 5;
  line.append(cell);
  return line;
}
