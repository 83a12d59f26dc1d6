// The server's API: the types of its responses, and its errors as messages.

export type Color = readonly [number, number, number];

export interface Model {
  name: string;
  hash: string;
  members: number;
}

/** A value that is shown, such as the probability of a class. */
export interface Choice {
  name: string;
  value: number;
  spread: number | null;
}

/** A curve that is predicted, such as survival. */
export interface Curve {
  x_title: string;
  y_title: string;
  x: number[];
  /** Between 0 and 1. */
  y: number[];
  /** The same of each member of an ensemble. */
  members: number[][];
  /** Positions of the numbers below it. */
  ticks: number[];
  /** The values in words. */
  text: string;
  /** What the lines are; empty if there is only one. */
  note: string;
}

export interface Prediction {
  model: number;
  /** Of the values, over the members of an ensemble. */
  spread: number[] | null;
  /** What is shown of the prediction, the most important first. */
  choices: Choice[];
  /** In a word: "tumor", "23.1", "er, her2". */
  predicted: string;
  /** With its numbers: "tumor 0.97", "ki67 23.1". */
  headline: string;
  curve: Curve | null;
  /** Whose scores are shown unless others are chosen. */
  score_name: string;
  has_scores: boolean;
}

export interface Slide {
  slide_id: string;
  label: string | null;
  size: [number, number] | null;
  mpp: number | null;
  zoomable: boolean;
  reason: string | null;
  thumbnail: boolean;
  truth: boolean;
  predictions: Prediction[];
}

export interface Results {
  title: string;
  /** Names of which one is predicted; empty if numbers or several findings are. */
  levels: string[];
  /** Whether the levels have no order. */
  has_classes: boolean;
  /** Names of all choices. */
  choices: string[];
  /** Whether the values of choices lie between 0 and 1. */
  are_probabilities: boolean;
  /** Whether they do, and are shown in percent, but are not probabilities of what is predicted. */
  are_percentages: boolean;
  /** Names of the scores by class. */
  score_names: string[];
  /** What the score names are, such as "Classes". */
  score_names_title: string;
  /** Whether scores by class add to a value or take from it. */
  diverging: boolean;
  /** What tiles do whose scores are above zero, and below: "adds to ki67", "lowers ki67". */
  score_effects: Record<string, [string, string] | null>;
  models: Model[];
  colors: Color[];
  /** The same with zero in the middle. */
  diverging_colors: Color[];
  slides: Slide[];
}

export interface SlideImage {
  size: [number, number] | null;
  mpp: number | null;
  tile: number;
  levels: number;
  zoomable: boolean;
  reason: string | null;
  /** Top left corner in viewers that crop the slide; GeoJSON counts from there. */
  bounds: [number, number] | null;
}

export interface Scores {
  patch_size: number;
  x: number[];
  y: number[];
  scores: number[];
  class_scores: Record<string, number[]> | null;
  /** The class the scores are for; null if one score serves all classes. */
  score_class: string | null;
}

const NO_RESPONSE = "The server does not respond. Is sacmil view still running?";

/** An error with a message for the user. */
export class ServerError extends Error {}

export const fetchResults = () => fetchJson<Results>("api/results");

export const fetchSlide = (slide: number, signal: AbortSignal) =>
  fetchJson<SlideImage>(`api/slides/${slide}`, signal);

export const fetchScores = (slide: number, model: number, signal: AbortSignal) =>
  fetchJson<Scores>(`api/slides/${slide}/scores/${model}`, signal);

export const fetchTruth = (slide: number, signal: AbortSignal) =>
  fetchJson<unknown>(`api/slides/${slide}/truth`, signal);

export const tileUrl = (slide: number, level: number, x: number, y: number) =>
  `api/slides/${slide}/tiles/${level}/${x}_${y}.jpg`;

export const thumbnailUrl = (slide: number) => `api/slides/${slide}/thumbnail`;

export function findPrediction(slide: Slide, model: number): Prediction | undefined {
  return slide.predictions.find((prediction) => prediction.model === model);
}

async function fetchJson<T>(url: string, signal?: AbortSignal): Promise<T> {
  let response: Response;
  try {
    response = await fetch(url, signal ? { signal } : {});
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ServerError(NO_RESPONSE);
  }
  if (!response.ok) throw new ServerError(await readErrorMessage(response));
  try {
    return (await response.json()) as T;
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ServerError(`The server's response to ${url} is incomplete or not JSON.`);
  }
}

/** Request a URL again and return the error; empty if it now succeeds. */
export async function fetchErrorMessage(url: string): Promise<string> {
  try {
    const response = await fetch(url);
    return response.ok ? "" : await readErrorMessage(response);
  } catch {
    return NO_RESPONSE;
  }
}

async function readErrorMessage(response: Response): Promise<string> {
  try {
    const { error } = (await response.json()) as { error?: unknown };
    if (typeof error === "string" && error) return error;
  } catch {
    // the body is not JSON: only the status is left
  }
  return `The server returned ${response.status} ${response.statusText}.`;
}
