// What the user has chosen, and who wants to know when it changes.

export type Scale = "rank" | "minmax";

/** What a view shows: its middle and its width, in level-0 pixels of the slide. */
export interface View {
  x: number;
  y: number;
  width: number;
}

export interface State {
  /** Index of the slide. */
  slide: number;
  /** Index of the model of each pane. */
  models: [number, number];
  /** Which pane the keys and the top tiles speak of. */
  active: 0 | 1;
  /** Name of a class, or empty for the one the model predicts. */
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

  get now(): Readonly<State> {
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
      if (!same(before[key], this.state[key])) changed.add(key);
    }
    if (changed.size) for (const listener of this.listeners) listener(this.state, changed);
  }

  /** Give the active pane, or the one named, another model. */
  chooseModel(model: number, pane: 0 | 1 = this.state.active): void {
    const models: [number, number] = [...this.state.models];
    models[pane] = model;
    this.change({ models, active: pane });
  }
}

function same(one: unknown, other: unknown): boolean {
  return Array.isArray(one) ? JSON.stringify(one) === JSON.stringify(other) : one === other;
}
