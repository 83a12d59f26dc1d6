// The curve that a model predicts, with those of its members, over a corner of the slide.

import { makeElement } from "./element";
import { formatNumber } from "./format";
import type { Curve } from "./server";

const NAMESPACE = "http://www.w3.org/2000/svg";
const SHARES = [0, 50, 100]; // percent

export class CurvePicture {
  /** Folds to its heading. */
  readonly root = makeElement("details", "curve");
  private readonly heading = makeElement("summary");
  private readonly figure = makeElement("figure");

  constructor() {
    this.root.append(this.heading, this.figure);
    this.root.open = true;
    this.show(null);
  }

  show(curve: Curve | null): void {
    this.root.hidden = !curve;
    if (!curve) return;
    this.heading.textContent = curve.y_title;
    this.figure.replaceChildren(drawCurve(curve));
    if (curve.note) this.figure.append(makeElement("figcaption", "", curve.note));
  }
}

/** Everything is placed by percent, so that letters and lines keep their size at any width. */
function drawCurve(curve: Curve): SVGElement {
  const picture = makeShape("svg", { role: "img", "aria-label": curve.text });
  for (const share of SHARES) {
    const y = `${100 - share}%`;
    const kind = share ? "" : "axis";
    picture.append(makeShape("line", { x1: "0", x2: "100%", y1: y, y2: y, class: kind }));
    picture.append(makeText(`${share}%`, { x: "-6", y, dy: "0.35em", "text-anchor": "end" }));
  }
  for (const tick of curve.ticks) {
    const x = `${toPercent(curve, tick)}%`;
    picture.append(makeShape("line", { x1: x, x2: x, y1: "97%", y2: "100%", class: "axis" }));
    picture.append(makeText(formatNumber(tick), { x, y: "100%", dy: "1.3em" }));
  }
  picture.append(makeText(curve.x_title, { x: "50%", y: "100%", dy: "2.6em" }), drawLines(curve));
  return picture;
}

function drawLines(curve: Curve): SVGElement {
  const lines = makeShape("svg", { viewBox: "0 0 100 100", preserveAspectRatio: "none" });
  for (const values of [...curve.members, curve.y]) {
    const points = values.map((y, at) => `${toPercent(curve, curve.x[at]!)},${100 - 100 * y}`);
    const kind = values === curve.y ? "" : "member";
    const line = { points: points.join(" "), class: kind, "vector-effect": "non-scaling-stroke" };
    lines.append(makeShape("polyline", line));
  }
  return lines;
}

const toPercent = ({ x }: Curve, value: number) => (100 * value) / x[x.length - 1]!;

function makeText(text: string, attributes: Record<string, string>): SVGElement {
  const made = makeShape("text", { "text-anchor": "middle", ...attributes });
  made.textContent = text;
  return made;
}

function makeShape(tag: string, attributes: Record<string, string>): SVGElement {
  const made = document.createElementNS(NAMESPACE, tag) as SVGElement;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}
