// What the server says: the shapes of its answers, and its errors as sentences.

export type Colour = readonly [number, number, number];

export interface Model {
  name: string;
  hash: string;
  members: number;
}

export interface Answer {
  model: number;
  probabilities: number[];
  spread: number[] | null;
  predicted: string;
  scored: boolean;
}

export interface Slide {
  slide_id: string;
  label: string | null;
  size: [number, number] | null;
  mpp: number | null;
  zoomable: boolean;
  why_not: string | null;
  thumbnail: boolean;
  truth: boolean;
  answers: Answer[];
}

export interface Results {
  title: string;
  classes: string[];
  models: Model[];
  colours: Colour[];
  slides: Slide[];
}

export interface SlideImage {
  size: [number, number] | null;
  mpp: number | null;
  tile: number;
  levels: number;
  zoomable: boolean;
  why_not: string | null;
  /** Where viewers that crop the slide begin: GeoJSON counts from there. */
  bounds: [number, number] | null;
}

export interface Scores {
  patch_size: number;
  x: number[];
  y: number[];
  scores: number[];
  class_scores: Record<string, number[]> | null;
  /** The class scores are about; null where one score serves all classes. */
  score_class: string | null;
}

/** An error whose message is a sentence for the user. */
export class ServerError extends Error {}

export const fetchResults = () => fetchJson<Results>("api/results");

export const fetchSlide = (slide: number, signal: AbortSignal) =>
  fetchJson<SlideImage>(`api/slides/${slide}`, signal);

export const fetchScores = (slide: number, model: number, signal: AbortSignal) =>
  fetchJson<Scores>(`api/slides/${slide}/scores/${model}`, signal);

export const fetchTruth = (slide: number, signal: AbortSignal) =>
  fetchJson<unknown>(`api/slides/${slide}/truth`, signal);

export const tileAddress = (slide: number, level: number, x: number, y: number) =>
  `api/slides/${slide}/tiles/${level}/${x}_${y}.jpg`;

export const thumbnailAddress = (slide: number) => `api/slides/${slide}/thumbnail`;

export function answerOf(slide: Slide, model: number): Answer | undefined {
  return slide.answers.find((answer) => answer.model === model);
}

async function fetchJson<T>(address: string, signal?: AbortSignal): Promise<T> {
  let response: Response;
  try {
    response = await fetch(address, signal ? { signal } : {});
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ServerError("The server does not answer. Is sacmil view still running?");
  }
  if (!response.ok) throw new ServerError(await sentence(response));
  try {
    return (await response.json()) as T;
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ServerError(`The server's answer to ${address} broke off or is no JSON.`);
  }
}

/** Why something cannot be had; empty where it can after all. */
export async function reasonOf(address: string): Promise<string> {
  try {
    const response = await fetch(address);
    return response.ok ? "" : await sentence(response);
  } catch {
    return "The server does not answer. Is sacmil view still running?";
  }
}

async function sentence(response: Response): Promise<string> {
  try {
    const { error } = (await response.json()) as { error?: unknown };
    if (typeof error === "string" && error) return error;
  } catch {
    // what stood in its place is no JSON: the status has to do
  }
  return `The server answered ${response.status} ${response.statusText}.`;
}
