// Scores fetched lately, so that going back and forth between models costs nothing.

import { ScoreMap } from "./score_map";
import { fetchScores, type Scores } from "./server";

const KEPT = 6;

export class ScoreShelf {
  private readonly kept = new Map<string, Scores>();

  async get(slide: number, model: number, signal: AbortSignal): Promise<Scores> {
    const key = `${slide}/${model}`;
    const found = this.kept.get(key) ?? (await fetchScores(slide, model, signal));
    this.kept.delete(key); // and set again: the last used is the last to go
    this.kept.set(key, found);
    const [oldest] = this.kept.keys();
    if (this.kept.size > KEPT && oldest) this.kept.delete(oldest);
    return found;
  }
}

/**
 * The map of the class chosen, or of the predicted one where none is; of the model's only score
 * where it has none by class.
 */
export function mapOf(scores: Scores, chosen: string, predicted: string): ScoreMap | null {
  const name = chosen || predicted;
  const ofClass = scores.class_scores?.[name];
  const values = ofClass ?? scores.scores;
  const scoreClass = ofClass ? name : (scores.score_class ?? "");
  return values.length ? new ScoreMap(scores, values, scoreClass, predicted) : null;
}
