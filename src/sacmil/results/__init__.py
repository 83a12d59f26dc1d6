"""What comes out: predictions, the run folder and the results folder.

A run folder holds, for ``sacmil train``, one trained part; for ``sacmil crossval`` one folder per
part, RUN/<model>/seed_<n>/fold_<n>::

    config.yaml         what was asked for
    provenance.json     versions and hashes of what it was made from
    splits/             splits_<fold>.csv: train, val, test
    metrics.csv         of a part: epoch, loss, …                   (one line per epoch)
    card.json           of a part, with model.safetensors: the model folder
    predictions.csv     slide_id, patient_id, split, fold, seed, model, label, p_<class>…
"""

from sacmil.results.prediction import Prediction
from sacmil.results.predictions import (
    KEYS,
    PREDICTIONS,
    Predictions,
    read_predictions,
    write_predictions,
)
from sacmil.results.results_folder import (
    Answer,
    Model,
    Results,
    Scores,
    SlideResult,
    read_results,
    read_scores,
    write_results,
    write_scores,
)

__all__ = [
    "KEYS",
    "PREDICTIONS",
    "Answer",
    "Model",
    "Prediction",
    "Predictions",
    "Results",
    "Scores",
    "SlideResult",
    "read_predictions",
    "read_results",
    "read_scores",
    "write_predictions",
    "write_results",
    "write_scores",
]
