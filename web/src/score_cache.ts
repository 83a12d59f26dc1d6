// Caches the latest scores, so that switching between models needs no request.

import { ScoreMap } from "./score_map";
import { fetchScores, type Prediction, type Results, type Scores } from "./server";

const MAX_ENTRIES = 6;

export class ScoreCache {
  private readonly entries = new Map<string, Scores>();

  async get(slide: number, model: number, signal: AbortSignal): Promise<Scores> {
    const key = `${slide}/${model}`;
    const found = this.entries.get(key) ?? (await fetchScores(slide, model, signal));
    this.entries.delete(key); // and set again: the last used is removed last
    this.entries.set(key, found);
    const [oldest] = this.entries.keys();
    if (this.entries.size > MAX_ENTRIES && oldest) this.entries.delete(oldest);
    return found;
  }
}

/**
 * Make the map of the chosen scores, or of those that belong to the prediction if none are chosen.
 * Models without class scores have one score for all.
 */
export function makeScoreMap(
  results: Results,
  scores: Scores,
  chosen: string,
  prediction: Prediction,
): ScoreMap | null {
  const name = chosen || prediction.score_name;
  const ofClass = scores.class_scores?.[name];
  const values = ofClass ?? scores.scores;
  const scoreClass = ofClass ? name : (scores.score_class ?? "");
  return values.length ? new ScoreMap(results, scores, values, scoreClass, prediction) : null;
}
