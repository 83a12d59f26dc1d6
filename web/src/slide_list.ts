// The list of slides: what is known and said of each, sorted and filtered.

import { element, made, option } from "./element";
import { counted, plural } from "./words";
import type { Results } from "./server";
import { filtered, ordered, rowsOf, type Column, type Order, type Row } from "./slide_order";
import type { Store } from "./state";
import { bar } from "./verdict";

/** Lists up to this length are made whole; of longer ones only the rows in sight and some around. */
const WHOLE_LIST = 200;
const ROWS_AROUND = 30;

export class SlideList {
  private readonly body = element("slide-table").querySelector("tbody")!;
  private readonly frame = element("slide-table-frame");
  private readonly text = element<HTMLInputElement>("filter-text");
  private readonly label = element<HTMLSelectElement>("filter-label");
  private readonly predicted = element<HTMLSelectElement>("filter-predicted");
  private readonly wrong = element<HTMLInputElement>("filter-wrong");
  private readonly probabilityOf = element<HTMLSelectElement>("probability-of");
  private order: Order | null = null;
  private shown: Row[] = [];
  /** Which of the shown rows are in the page: from the first up to the end. */
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
    for (const head of this.heads()) head.addEventListener("click", () => this.sortBy(head));
    this.body.addEventListener("click", (event) => this.clicked(event));
    this.frame.addEventListener("scroll", () => this.follow());
    new ResizeObserver(() => this.follow()).observe(this.frame);
    store.onChange((_, changed) => {
      if (changed.has("models") || changed.has("active")) this.render();
      else if (changed.has("slide")) this.select();
    });
    this.render();
  }

  /** Choose the slide so many rows further down. */
  step(by: number): void {
    const here = this.shown.findIndex((row) => row.index === this.store.now.slide);
    const next = this.shown[here < 0 ? 0 : Math.max(0, here + by)];
    if (next) this.store.change({ slide: next.index });
  }

  focusFilter(): void {
    this.text.focus();
    this.text.select();
  }

  private fillChoices(): void {
    const { classes, slides } = this.results;
    const labels = [...new Set(slides.map((slide) => slide.label))].filter((name) => name !== null);
    const named = (names: string[]) => names.map((name) => option(name, name));
    this.label.append(option("", "Any label"), ...named(labels.sort()));
    this.predicted.append(option("", "Any prediction"), ...named(classes));
    this.probabilityOf.append(option("", "P of predicted"));
    this.probabilityOf.append(...classes.map((name) => option(name, `P of ${name}`)));
    this.label.disabled = this.wrong.disabled = !labels.length;
  }

  private heads(): HTMLElement[] {
    return [...document.querySelectorAll<HTMLElement>("#slide-table th")];
  }

  /** Upwards, downwards, as listed. */
  private sortBy(head: HTMLElement): void {
    const column = head.dataset["column"] as Column;
    if (this.order?.column !== column) this.order = { column, descending: false };
    else this.order = this.order.descending ? null : { column, descending: true };
    this.render();
  }

  private clicked(event: Event): void {
    const row = (event.target as HTMLElement).closest("tr");
    if (row) this.store.change({ slide: Number(row.dataset["slide"]) });
  }

  private render(): void {
    const { models, active } = this.store.now;
    const rows = rowsOf(this.results, models[active], this.probabilityOf.value);
    const filter = {
      text: this.text.value,
      label: this.label.value,
      predicted: this.predicted.value,
      wrongOnly: this.wrong.checked,
    };
    this.shown = ordered(filtered(rows, filter), this.order);
    this.makeRows(0);
    if (!this.shown.length) this.body.append(nothingRow());
    element("slide-table").setAttribute("aria-rowcount", String(this.shown.length + 1));
    this.countSlides(rows.length);
    this.markOrder();
    this.select();
  }

  private countSlides(all: number): void {
    const judged = this.shown.filter((row) => row.right !== null);
    const wrong = judged.filter((row) => row.right === false).length;
    const share = this.shown.length < all ? `${counted(this.shown.length)} of ` : "";
    const marks = `${counted(wrong)} of ${counted(judged.length)} labelled slides answered wrong`;
    const told = judged.length ? ` · ${marks}` : "";
    element("slide-counts").textContent = share + plural(all, "slide") + told;
  }

  private markOrder(): void {
    for (const head of this.heads()) {
      const here = this.order?.column === head.dataset["column"];
      const way = this.order?.descending ? "descending" : "ascending";
      head.setAttribute("aria-sort", here ? way : "none");
    }
  }

  private select(): void {
    const at = this.shown.findIndex((row) => row.index === this.store.now.slide);
    if (at >= 0 && (at < this.first || at >= this.end)) {
      this.makeRows(at);
      this.frame.scrollTop = at * this.rowHeight();
    }
    this.mark()?.scrollIntoView({ block: "nearest" });
  }

  /** Mark the row of the slide that is open, if it is in the page. */
  private mark(): HTMLElement | null {
    this.body.querySelector("[aria-selected=true]")?.setAttribute("aria-selected", "false");
    const row = document.getElementById(rowId(this.store.now.slide));
    row?.setAttribute("aria-selected", "true");
    this.frame.setAttribute("aria-activedescendant", row?.id ?? "");
    return row;
  }

  /** Make other rows where the user has scrolled past those in the page. */
  private follow(): void {
    const height = this.rowHeight();
    const top = Math.floor(this.frame.scrollTop / height);
    const bottom = Math.ceil((this.frame.scrollTop + this.frame.clientHeight) / height);
    const isCovered = top >= this.first && Math.min(bottom, this.shown.length) <= this.end;
    if (isCovered || this.shown.length <= WHOLE_LIST) return;
    this.makeRows(top);
    this.mark();
  }

  /** Put the rows around one into the page; empty space stands for the others. */
  private makeRows(top: number): void {
    const count = this.shown.length;
    const isWhole = count <= WHOLE_LIST;
    const inSight = Math.ceil(this.frame.clientHeight / this.rowHeight());
    this.first = isWhole ? 0 : Math.max(0, top - ROWS_AROUND);
    this.end = isWhole ? count : Math.min(count, top + inSight + ROWS_AROUND);
    const rows = this.shown.slice(this.first, this.end);
    this.body.replaceChildren(...rows.map((row, at) => tableRow(row, this.first + at)));
    this.body.style.paddingTop = `${this.first * this.rowHeight()}px`;
    this.body.style.paddingBottom = `${(count - this.end) * this.rowHeight()}px`;
  }

  private rowHeight(): number {
    return this.body.querySelector("tr[data-slide]")?.getBoundingClientRect().height || 40;
  }
}

const rowId = (slide: number) => `slide-${slide}`;

function tableRow(row: Row, at: number): HTMLTableRowElement {
  const line = made("tr");
  line.setAttribute("aria-rowindex", String(at + 2)); // the head is the first
  line.id = rowId(row.index);
  line.dataset["slide"] = String(row.index);
  line.setAttribute("role", "row"); // a table laid out as a grid is no table to a screen reader
  line.setAttribute("aria-selected", "false");
  line.append(markCell(row.right), textCell(row.slide.slide_id, "name"));
  line.append(textCell(row.slide.label), textCell(row.predicted), probabilityCell(row));
  for (const cell of line.children) cell.setAttribute("role", "gridcell");
  return line;
}

function markCell(right: boolean | null): HTMLElement {
  const cell = made("td", right === null ? "" : right ? "right" : "wrong");
  cell.textContent = right === null ? "" : right ? "✓" : "✗";
  const words = right ? "prediction agrees with the label" : "prediction differs from the label";
  cell.title = right === null ? "no label or no prediction to compare" : words;
  cell.setAttribute("aria-label", cell.title);
  return cell;
}

function textCell(text: string | null, className = ""): HTMLElement {
  const cell = made("td", text === null ? "unknown" : className, text ?? "–");
  cell.title = text ?? "unknown";
  return cell;
}

function probabilityCell({ probability }: Row): HTMLElement {
  if (probability === null) return textCell(null);
  const cell = made("td", "probability");
  cell.append(bar(probability), made("span", "", probability.toFixed(2)));
  cell.title = String(probability);
  return cell;
}

function nothingRow(): HTMLElement {
  const line = made("tr", "nothing");
  const cell = made("td", "", "No slide fits the filter.");
  cell.colSpan = 5;
  line.append(cell);
  return line;
}
