// The user's choices, and callbacks for when they change.

export type Scale = "rank" | "minmax";

/** The visible area: its center and its width, in level-0 pixels of the slide. */
export interface View {
  x: number;
  y: number;
  width: number;
}

export interface State {
  /** Index of the slide. */
  slide: number;
  /** Index of the model of each panel. */
  models: [number, number];
  /** The panel that the keys and the top tiles apply to. */
  active: 0 | 1;
  /** Name of a class, or empty for the predicted one. */
  scoreClass: string;
  scale: Scale;
  opacity: number;
  heat: boolean;
  truth: boolean;
  compare: boolean;
}

type Listener = (state: Readonly<State>, changed: ReadonlySet<keyof State>) => void;

export class Store {
  private readonly listeners: Listener[] = [];

  constructor(private state: State) {}

  get current(): Readonly<State> {
    return this.state;
  }

  onChange(listener: Listener): void {
    this.listeners.push(listener);
  }

  change(patch: Partial<State>): void {
    const before = this.state;
    this.state = { ...before, ...patch };
    const changed = new Set<keyof State>();
    for (const key of Object.keys(patch) as (keyof State)[]) {
      if (!isEqual(before[key], this.state[key])) changed.add(key);
    }
    if (changed.size) for (const listener of this.listeners) listener(this.state, changed);
  }

  /** Choose the model of the active panel, or of the given one. */
  chooseModel(model: number, panel: 0 | 1 = this.state.active): void {
    const models: [number, number] = [...this.state.models];
    models[panel] = model;
    this.change({ models, active: panel });
  }
}

function isEqual(one: unknown, other: unknown): boolean {
  return Array.isArray(one) ? JSON.stringify(one) === JSON.stringify(other) : one === other;
}
