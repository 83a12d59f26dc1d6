// The list of slides with labels and predictions, sorted and filtered.

import { getElement, makeElement, makeOption } from "./element";
import { formatCount, formatPlural } from "./format";
import type { Results } from "./server";
import { filterRows, makeRows, sortRows } from "./slide_order";
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
  private readonly probabilityOf = getElement<HTMLSelectElement>("probability-of");
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
    for (const control of [this.text, this.label, this.predicted, this.wrong, this.probabilityOf]) {
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

  private fillChoices(): void {
    const { classes, slides } = this.results;
    const labels = [...new Set(slides.map((slide) => slide.label))].filter((name) => name !== null);
    const named = (names: string[]) => names.map((name) => makeOption(name, name));
    this.label.append(makeOption("", "Any label"), ...named(labels.sort()));
    this.predicted.append(makeOption("", "Any prediction"), ...named(classes));
    this.probabilityOf.append(makeOption("", "P of predicted"));
    this.probabilityOf.append(...classes.map((name) => makeOption(name, `P of ${name}`)));
    this.label.disabled = this.wrong.disabled = !labels.length;
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
    const rows = makeRows(this.results, models[active], this.probabilityOf.value);
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
    this.body.replaceChildren(...rows.map((row, at) => makeTableRow(row, this.first + at)));
    this.body.style.paddingTop = `${this.first * this.rowHeight()}px`;
    this.body.style.paddingBottom = `${(count - this.end) * this.rowHeight()}px`;
  }

  private rowHeight(): number {
    return this.body.querySelector("tr[data-slide]")?.getBoundingClientRect().height || 40;
  }
}

const rowId = (slide: number) => `slide-${slide}`;

function makeTableRow(row: SlideRow, at: number): HTMLTableRowElement {
  const line = makeElement("tr");
  line.setAttribute("aria-rowindex", String(at + 2)); // the head is the first
  line.id = rowId(row.index);
  line.dataset["slide"] = String(row.index);
  line.setAttribute("role", "row"); // a table laid out as a grid is no table to a screen reader
  line.setAttribute("aria-selected", "false");
  line.append(makeMarkCell(row.isCorrect), makeTextCell(row.slide.slide_id, "name"));
  line.append(makeTextCell(row.slide.label), makeTextCell(row.predicted), makeProbabilityCell(row));
  for (const cell of line.children) cell.setAttribute("role", "gridcell");
  return line;
}

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

function makeProbabilityCell({ probability }: SlideRow): HTMLElement {
  if (probability === null) return makeTextCell(null);
  const cell = makeElement("td", "probability");
  cell.append(makeProbabilityBar(probability), makeElement("span", "", probability.toFixed(2)));
  cell.title = String(probability);
  return cell;
}

function makeEmptyRow(): HTMLElement {
  const line = makeElement("tr", "nothing");
  const cell = makeElement("td", "", "No slide matches the filter.");
  cell.colSpan = 5;
  line.append(cell);
  return line;
}
