"""Output files: predictions, the run folder and the results folder.

A run folder of ``sacmil train`` holds one job, that of ``sacmil crossval`` one folder per job,
RUN/<model>/seed_<n>/fold_<n>::

    config.yaml         the configuration
    provenance.json     versions and hashes of the inputs
    splits/             splits_<fold>.csv: train, val, test
    metrics.csv         of a job: epoch, loss, …                    (one line per epoch)
    card.json           of a job, with model.safetensors: the model folder
    predictions.csv     slide_id, patient_id, split, fold, seed, model, label, p_<class>…
    task.json           what the columns of predictions.csv are, unless they are classes
    localisation_by_slide.csv    where bags have instance labels: AUC and average precision
                                 of each test slide
"""

from sacmil.results.prediction import Ensemble as Ensemble
from sacmil.results.prediction import Prediction as Prediction
from sacmil.results.results_folder import InstanceScores as InstanceScores
from sacmil.results.results_folder import ModelInfo as ModelInfo
from sacmil.results.results_folder import Results as Results
from sacmil.results.results_folder import SlideResult as SlideResult
from sacmil.results.results_folder import StoredPrediction as StoredPrediction
from sacmil.results.results_folder import read_results as read_results
from sacmil.results.results_folder import read_scores as read_scores
from sacmil.results.results_folder import write_results as write_results
from sacmil.results.results_folder import write_scores as write_scores
from sacmil.results.run import ID_COLUMNS as ID_COLUMNS
from sacmil.results.run import KEY_COLUMNS as KEY_COLUMNS
from sacmil.results.run import LOCALIZATION_FILE as LOCALIZATION_FILE
from sacmil.results.run import PREDICTIONS_FILE as PREDICTIONS_FILE
from sacmil.results.run import Predictions as Predictions
from sacmil.results.run import Run as Run
from sacmil.results.run import SlideLocalization as SlideLocalization
from sacmil.results.run import read_localization as read_localization
from sacmil.results.run import read_predictions as read_predictions
from sacmil.results.run import write_localization as write_localization
from sacmil.results.run import write_predictions as write_predictions
from sacmil.results.task_card import TASK_FILE as TASK_FILE
from sacmil.results.task_card import TaskCard as TaskCard
from sacmil.results.task_card import parse_task_card as parse_task_card
