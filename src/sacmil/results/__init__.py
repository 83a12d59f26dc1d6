"""Output files: predictions, the run folder and the results folder.

A run folder of ``sacmil train`` holds one job, that of ``sacmil crossval`` one folder per job,
RUN/<model>/seed_<n>/fold_<n>::

    config.yaml         the configuration
    provenance.json     versions and hashes of the inputs
    splits/             splits_<fold>.csv: train, val, test
    metrics.csv         of a job: epoch, loss, …                    (one line per epoch)
    card.json           of a job, with model.safetensors: the model folder
    predictions.csv     slide_id, patient_id, split, fold, seed, model, label, p_<class>…
    localisation_by_slide.csv    where bags have instance labels: AUC and average precision
                                 of each test slide
"""

from sacmil.results.prediction import Ensemble, Prediction
from sacmil.results.results_folder import (
    InstanceScores,
    ModelInfo,
    Results,
    SlideResult,
    StoredPrediction,
    read_results,
    read_scores,
    write_results,
    write_scores,
)
from sacmil.results.run import (
    KEY_COLUMNS,
    LOCALIZATION_FILE,
    PREDICTIONS_FILE,
    Predictions,
    Run,
    SlideLocalization,
    read_localization,
    read_predictions,
    write_localization,
    write_predictions,
)

__all__ = [
    "KEY_COLUMNS",
    "LOCALIZATION_FILE",
    "PREDICTIONS_FILE",
    "Ensemble",
    "InstanceScores",
    "ModelInfo",
    "Prediction",
    "Predictions",
    "Results",
    "Run",
    "SlideLocalization",
    "SlideResult",
    "StoredPrediction",
    "read_localization",
    "read_predictions",
    "read_results",
    "read_scores",
    "write_localization",
    "write_predictions",
    "write_results",
    "write_scores",
]
