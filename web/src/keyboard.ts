// Keyboard shortcuts; the help in index.html lists them.

export interface Actions {
  stepSlide: (by: number) => void;
  filter: () => void;
  zoom: (factor: number) => void;
  pan: (across: number, down: number) => void;
  fit: () => void;
  heat: () => void;
  truth: () => void;
  opacity: (by: number) => void;
  model: (model: number) => void;
  compare: () => void;
  topTile: (by: number) => void;
  help: () => void;
}

const ZOOM = 1.5;
const PAN = 0.15; // share of the view
const FADE = 0.1;
const DIRECTIONS: Record<string, [number, number]> = {
  ArrowUp: [0, -1],
  ArrowDown: [0, 1],
  ArrowLeft: [-1, 0],
  ArrowRight: [1, 0],
};

export function listenToKeys(actions: Actions): void {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (document.querySelector("dialog[open]")) return;
    const target = event.target as HTMLElement;
    if (event.key === "Escape") target.blur();
    if (target.matches("input[type=search], select")) return;
    const act = target.matches("input") ? undefined : arrowAction(event.key, target, actions);
    const done = act ?? letterAction(event.key, actions);
    if (!done) return;
    event.preventDefault();
    done();
  });
}

/** In the image, arrows pan; elsewhere, they step through the slides. */
function arrowAction(key: string, target: HTMLElement, actions: Actions): (() => void) | undefined {
  if (target.closest(".slide-canvas")) {
    const direction = DIRECTIONS[key];
    return direction && (() => actions.pan(PAN * direction[0], PAN * direction[1]));
  }
  if (key === "ArrowUp") return () => actions.stepSlide(-1);
  return key === "ArrowDown" ? () => actions.stepSlide(1) : undefined;
}

function letterAction(key: string, actions: Actions): (() => void) | undefined {
  if (/^[1-9]$/.test(key)) return () => actions.model(Number(key) - 1);
  const all: Record<string, () => void> = {
    j: () => actions.stepSlide(1),
    k: () => actions.stepSlide(-1),
    "/": actions.filter,
    "+": () => actions.zoom(ZOOM),
    "=": () => actions.zoom(ZOOM),
    "-": () => actions.zoom(1 / ZOOM),
    "0": actions.fit,
    h: actions.heat,
    t: actions.truth,
    "[": () => actions.opacity(-FADE),
    "]": () => actions.opacity(FADE),
    c: actions.compare,
    g: () => actions.topTile(1),
    G: () => actions.topTile(-1),
    "?": actions.help,
  };
  return all[key];
}
