"""Survival: the time until an event, known for some patients only."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt

from sacmil.errors import (
    CohortError,
    CohortWarning,
    ConfigError,
    OptionError,
    SacMILError,
    check_type,
    format_count,
)
from sacmil.metrics.metric import Metric
from sacmil.metrics.survival import baseline_hazard
from sacmil.results import StoredPrediction
from sacmil.tasks._checks import check_settings
from sacmil.tasks._constants import make_constant
from sacmil.tasks._status_name import explain_unclear_name, is_censoring
from sacmil.tasks._survival_losses import (
    LEAST_LOG,
    TIES,
    Ties,
    nll_row_losses,
    sum_log_terms,
    weigh_log_terms,
)
from sacmil.tasks._survival_losses import cox_loss as cox_loss
from sacmil.tasks._survival_losses import discrete_nll as discrete_nll
from sacmil.tasks._survival_losses import time_bins as time_bins
from sacmil.tasks._survival_metrics import make_breakdown, make_metrics
from sacmil.tasks._survival_table import (
    GDC_TIMES,
    UNITS,
    SurvivalColumns,
    find_columns,
    find_gdc_columns,
    find_unit,
    parse_survival,
)
from sacmil.tasks._survival_times import YEAR, choose_curve_times, choose_horizons, format_number
from sacmil.tasks._task import Choice, Curve, Floats, HasValues, Summary, Targets, Task

if TYPE_CHECKING:
    import pandas
    from torch import Tensor

SurvivalLoss = Literal["discrete", "cox"]
LOSSES = ("discrete", "cox")
TIME, EVENT = 0, 1
"""Columns of the targets."""
RISK, PERCENTILE, CURVE = 0, 1, 2
"""Columns of the predictions; the last is the first of the curve."""
_CAUTION = (
    "This is what the model expects of patients with such a slide, not the prognosis of this "
    "patient. It depends on the patients the model was trained on, and on nothing but the slide."
)
_MAX_YEARS = 100
"""A longer median follow-up is that of another unit."""
_MAX_LOG_HAZARD = 60.0
"""Its exponential is still finite in float32."""


_SETTINGS = (
    *("time", "event", "loss", "bins", "alpha", "ties", "unit", "horizons", "curve_times"),
)
_LEARNED_LISTS = ("edges", "risk_quantiles", "hazard", "score_bias")


@dataclass(frozen=True)
class LearnedSurvival:
    """What a training set teaches: the bins before training, the rest by the trained model."""

    edges: tuple[float, ...] = ()
    """Inner edges of the bins, in the unit of the table."""
    last_time: float = 0.0
    """The largest time, where the last bin ends."""
    risk_quantiles: tuple[float, ...] = ()
    """Of the training patients' risks: 0 %, 1 %, … 100 %."""
    hazard: tuple[float, ...] = ()
    """Baseline cumulative hazard of Cox's model at the times of the curve."""
    score_bias: tuple[float, ...] = ()
    """What the outputs for a slide have besides its instance scores; empty if these are outputs
    for an instance by itself."""

    @classmethod
    def from_mapping(cls, found: Mapping[str, Any]) -> Self:
        """Return what a card holds."""
        lists = {name: tuple(map(float, found.get(name, ()))) for name in _LEARNED_LISTS}
        check_settings("survival", found, ("last_time", *_LEARNED_LISTS))
        return cls(last_time=float(found.get("last_time", 0.0)), **lists)

    def __post_init__(self) -> None:
        edges = (0.0, *self.edges, self.last_time)
        numbers = (*edges, *self.risk_quantiles, *self.hazard, *self.score_bias)
        if not all(map(math.isfinite, numbers)) or (self.edges and sorted(edges) != [*edges]):
            raise OptionError(
                f"the card's times are {edges}; expected rising numbers: copy the file again"
            )


@dataclass(frozen=True)
class Survival(Task):
    """The time until an event, such as death; of censored patients only a lower limit is known.

    With the discrete loss a model has a hazard for each bin of time. The bins hold equally many
    events of the training set. With Cox's loss it has one log hazard, which patients are compared
    by: a training step then takes several slides.

    Args:
        time: column of the table, found by its usual names if empty; two for tables of the GDC.
        event: column of the status, likewise. 1 is an event, unless its name says "censor".
        loss_name: discrete or cox.
        bins: number of hazards, for the discrete loss.
        alpha: by how much censored patients count less, for the discrete loss; 0 to 1.
        ties: for Cox's loss, how events at the same time are counted: efron or breslow.
        unit: of the times, such as months; taken from the column's name if empty.
        horizons: times that metrics are reported for; 1, 3 and 5 years if empty.
        curve_times: at which survival is predicted; chosen by the table if empty.
        learned: from the training set.

    Example:
        >>> Survival("months", "death", curve_times=(12, 24)).prediction_columns
        ('risk', 'risk_percentile', 's_12', 's_24')
    """

    kind: ClassVar[str] = "survival"
    headline: ClassVar[str] = "c"
    target_columns: ClassVar[tuple[str, ...]] = ("time", "event")
    score_names: ClassVar[tuple[str, ...]] = ("risk",)
    are_probabilities: ClassVar[bool] = False
    are_percentages: ClassVar[bool] = True
    diverging_scores: ClassVar[bool] = True
    score_effects: ClassVar[tuple[str, str]] = ("raises the risk", "lowers the risk")
    zero_effect: ClassVar[str] = "has the median risk of the training patients"
    learns_by_patient: ClassVar[bool] = True
    needs_training_rows: ClassVar[bool] = True
    left_out: ClassVar[str] = "with a time of 0"
    default_metrics: ClassVar[tuple[str, ...]] = ("c", "c_uno", "auc", "ibs", "ibs_km")
    fold_size_name: ClassVar[str] = "pairs or patients"
    breakdown_of: ClassVar[str] = "horizon"
    plots: ClassVar[tuple[str, ...]] = ("kaplan_meier", "auc_over_time", "survival_calibration")
    tables: ClassVar[tuple[str, ...]] = ("risk_groups", "risk_by_patient")

    time: str | Sequence[str] = ""
    event: str = ""
    loss_name: SurvivalLoss = "discrete"
    bins: int = 4
    alpha: float = 0.0
    ties: Ties = "efron"
    unit: str = ""
    horizons: Sequence[float] = ()
    curve_times: Sequence[float] = ()
    learned: LearnedSurvival = LearnedSurvival()

    def __post_init__(self) -> None:
        names = (self.time,) if isinstance(self.time, str) else tuple(self.time)
        names = tuple(name for name in names if name != "")
        if not all(isinstance(name, str) for name in names) or len({*names}) != len(names) > 0:
            raise OptionError(f"`time` is {self.time!r}; expected the name of a column")
        if len(names) > 2:
            raise OptionError(
                f"`time` are {len(names)} columns; expected one, or two: until death and until the "
                "last contact"
            )
        check_type("event", self.event, str, "the name of a column")
        if self.event in names:
            raise OptionError(f"`time` and `event` are both {self.event!r}; expected two columns")
        if self.unit not in ("", *UNITS):
            raise OptionError(f"`unit` is {self.unit!r}; expected {', '.join(UNITS)}")
        object.__setattr__(self, "time", names)
        if self.loss_name not in LOSSES:
            raise OptionError(f"`loss` is {self.loss_name!r}; expected {', '.join(LOSSES)}")
        if self.ties not in TIES:
            raise OptionError(f"`ties` is {self.ties!r}; expected {', '.join(TIES)}")
        if isinstance(self.bins, bool) or not isinstance(self.bins, int) or self.bins < 2:
            raise OptionError(f"`bins` is {self.bins!r}; expected a whole number from 2 up")
        if not 0 <= self.alpha <= 1:
            raise OptionError(f"`alpha` is {self.alpha!r}; expected a number from 0 to 1")
        for argument in ("horizons", "curve_times"):
            check_type(argument, getattr(self, argument), (tuple, list), "numbers, as (12, 36)")
            times = tuple(map(float, getattr(self, argument)))
            if not all(0 < time < math.inf for time in times) or sorted(set(times)) != [*times]:
                raise OptionError(f"`{argument}` are {times}; expected rising times above 0")
            object.__setattr__(self, argument, times)

    # --- what is predicted

    @property
    def needs_batch(self) -> bool:
        """Whether it is Cox's loss, which compares patients."""
        return self.loss_name == "cox"

    @property
    def outputs(self) -> int:
        """One log hazard, or one hazard for each bin; fewer if times of events coincide."""
        if self.loss_name == "cox":
            return 1
        return len(self.learned.edges) + 1 if self.learned.last_time else self.bins

    @property
    def prediction_columns(self) -> tuple[str, ...]:
        """Risk, its percentile among the training patients, and survival at each time."""
        curve = (f"s_{format_number(time)}" for time in self.curve_times)
        return ("risk", "risk_percentile", *curve)

    @property
    def value_names(self) -> tuple[str, ...]:
        """The same in words."""
        times = (f"survival {self.format_time(time)}" for time in self.curve_times)
        return ("risk", "risk percentile", *times)

    @property
    def output_description(self) -> str:
        """Loss, unit and times: risks of the two losses have different scales."""
        times = ", ".join(map(format_number, self.curve_times))
        unit = self.unit or "in no known unit"
        return f"survival at {times} {unit} with the {self.loss_name} loss"

    @property
    def source_columns(self) -> tuple[str, ...]:
        """The columns of time and status."""
        return (*self.time, self.event)

    @property
    def settings(self) -> dict[str, Any]:
        """Columns, loss, unit and times, and what the training set taught."""
        found: dict[str, Any] = {"time": list(self.time), "event": self.event}
        found |= {"loss": self.loss_name, "unit": self.unit}
        if self.loss_name == "cox":
            found["ties"] = self.ties
        else:
            found |= {"bins": self.bins, "alpha": self.alpha}
        found |= {"horizons": list(self.horizons), "curve_times": list(self.curve_times)}
        learned = {name: value for name, value in vars(self.learned).items() if value}
        lists = {name: list(v) if isinstance(v, tuple) else v for name, v in learned.items()}
        return found | ({"learned": lists} if lists else {})

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """Return the task of these settings."""
        check_settings(cls.kind, settings, _SETTINGS, ("learned",))
        given = dict(settings)
        given["loss_name"] = given.pop("loss", "discrete")
        learned = given.pop("learned", {})
        check_type("learned", learned, Mapping, "what a training set taught, by name")
        given["learned"] = LearnedSurvival.from_mapping(learned)
        return cls(**given)

    # --- the table

    def find_columns(self, columns: Sequence[str]) -> Self:
        """Return the task with the names of its columns and the unit of time."""
        if tuple(map(str.lower, self.time)) == GDC_TIMES and not self.event:
            found = find_gdc_columns(columns)
        elif len(self.time) > 1:
            found = SurvivalColumns(tuple(self.time), self.event)
            if not self.event:
                raise OptionError(
                    f"`time` are {found.time.replace(' or ', ' and ')}: the times until death and "
                    "until the last contact; expected one column, or also that of the status by "
                    "`event`"
                )
        else:
            found = find_columns(columns, "".join(self.time), self.event)
        unit = find_unit(found)
        if self.unit and unit and unit != self.unit:
            raise OptionError(
                f"{found.time} is in {unit} by its name, but the unit is {self.unit}; expected one "
                "unit: convert the times and rename the column"
            )
        return replace(self, time=found.times, event=found.event, unit=self.unit or unit)

    def read(self, rows: pandas.DataFrame) -> Targets:
        """Return time and event; what cannot be read is an error, nothing is assumed."""
        targets, problems = parse_survival(rows, SurvivalColumns(tuple(self.time), self.event))
        if problems:
            raise CohortError("table", problems)
        return targets

    def find_left_out(self, targets: Targets) -> npt.NDArray[np.bool_]:
        """Return the patients without any follow-up."""
        is_zero: npt.NDArray[np.bool_] = targets[:, TIME] == 0
        return is_zero

    def complete(self, targets: Targets) -> Self:
        """Return the task with the times that survival is predicted and reported at."""
        largest = float(targets[:, TIME].max())
        if late := [time for time in self.horizons if time >= largest and not self.curve_times]:
            raise OptionError(
                f"`horizons` has {self.format_time(late[0])}, but the longest follow-up is "
                f"{self.format_time(largest)}; expected times before it"
            )
        horizons = self.horizons or choose_horizons(targets[:, TIME], targets[:, EVENT], self.unit)
        times = self.curve_times or choose_curve_times(targets[:, TIME], self.unit)
        return replace(self, horizons=horizons, curve_times=sorted({*times, *horizons}))

    def describe_targets(self, targets: Targets) -> str:
        """Return the columns and the number of events, for people to check."""
        events = int(targets[:, EVENT].sum())
        unit = f" in {self.unit}" if self.unit else ""
        inverted = ", where 1 is censored" if is_censoring(self.event) else ""
        return (
            f"time = {' or '.join(self.time)}{unit}, event = {self.event}{inverted}: "
            f"{events} events, {len(targets) - events} censored"
        )

    def format_source(self, target: Sequence[float]) -> list[str]:
        """Return the cells of the table for a target."""
        event = target[EVENT] == 1
        times = [repr(float(target[TIME]))] * len(self.time)
        if len(self.time) > 1:
            times[int(event)] = ""
            return [*times, "Dead" if event else "Alive"]
        if explain_unclear_name(self.event):  # read with words
            return [*times, "event" if event else "censored"]
        return [*times, str(int(event != is_censoring(self.event)))]

    # --- what is learned

    def explain_difference(self, other: Task) -> str:
        """Return also whether the unit or the times differ."""
        if not isinstance(other, Survival):
            return super().explain_difference(other)
        if self.unit != other.unit:
            return (
                f"its times are in {self.unit or 'no known unit'}, those of the table in "
                f"{other.unit or 'no known unit'}; expected the same: convert the column, or give "
                "its `unit`"
            )
        times = [", ".join(map(format_number, task.curve_times)) for task in (self, other)]
        if times[0] == times[1]:
            return ""
        return (
            f"predicts survival at {times[0]}, the table was read for {times[1]}; expected the "
            "same: read it with the task of the model, and take `horizons` of these times"
        )

    def find_training_problems(self, targets: Targets) -> list[str]:
        """Return whether there are too few events, or nobody is censored."""
        events = int(targets[:, EVENT].sum())
        if not len(targets):
            return [f"{' or '.join(self.time)} is 0 in every row; expected the time of follow-up"]
        if events == len(targets):
            return [f"{self.event} is an event in every row; expected censored patients too"]
        if not events:
            return [f"{self.event} is censored in every row; expected events too"]
        if not np.ptp(targets[:, TIME]):
            time = format_number(targets[0, TIME])
            return [f"{' or '.join(self.time)} is {time} in every row; expected different times"]
        if events < self._events_needed:
            return [
                f"{self.event} is an event for {format_count(events, 'patient')}; expected at "
                f"least {self._events_needed}, one for each bin"
            ]
        return []

    @property
    def _events_needed(self) -> int:
        return self.bins if self.loss_name == "discrete" else 1

    def find_fitting_problems(self, targets: Targets) -> list[str]:
        """Return whether a training set has fewer events than bins, or none for Cox's loss."""
        events = int(targets[:, EVENT].sum())
        if events >= self._events_needed:
            return []
        if self.loss_name == "cox":
            return ["the training set has no event; expected one at least: use fewer folds"]
        return [
            f"the training set has {format_count(events, 'event')} for {self.bins} bins of time; "
            "expected at least one for each: use fewer `bins`, fewer folds, or `loss=cox`"
        ]

    def describe_implausible(self, targets: Targets) -> str:
        """Return whether the follow-up is longer than lives, as days are that count as years."""
        median = float(np.median(targets[:, TIME])) if len(targets) else 0.0
        if self.unit not in YEAR or median <= _MAX_YEARS * YEAR[self.unit]:
            return ""
        return (
            f"the median of {' or '.join(self.time)} is {self.format_time(median)}, more than "
            f"{_MAX_YEARS} years; check the `unit`"
        )

    def check_training(self, *, label_smoothing: float, class_weights: str) -> None:
        """Reject what needs classes."""
        super().check_training(label_smoothing=label_smoothing, class_weights=class_weights)
        if class_weights != "none":
            raise ConfigError(
                f"class_weights={class_weights}; survival has no classes to weigh, expected none"
            )

    def fitted(
        self, targets: Targets, *, label_smoothing: float = 0.0, class_weights: str = "none"
    ) -> Self:
        """Return the task with the bins of the training patients."""
        if problems := self.find_fitting_problems(targets):
            raise SacMILError(problems[0])
        times, events = targets.T
        if self.loss_name == "cox":
            return replace(self, learned=LearnedSurvival())
        edges = time_bins(times, events, self.bins)
        if len(edges) + 1 < self.bins:
            warnings.warn(
                f"times of events coincide: {len(edges) + 1} bins instead of {self.bins}",
                CohortWarning,
                stacklevel=2,
            )
        learned = LearnedSurvival(tuple(edges.tolist()), float(times.max()))
        return replace(self, learned=learned)

    def calibrated(
        self,
        outputs: Floats,
        targets: Targets,
        patients: Sequence[str] | None = None,
        score_sums: Floats | None = None,
    ) -> Self:
        """Return the task with the risks of its training patients, and Cox's baseline."""
        outputs = np.asarray(outputs, dtype=np.float64)
        rows = np.arange(len(outputs)) if patients is None else np.asarray(patients)
        _, first, group = np.unique(rows, return_index=True, return_inverse=True)
        risks = np.bincount(group, self._compute_risks(outputs)) / np.bincount(group)
        quantiles = np.quantile(risks, np.linspace(0, 1, 101))
        hazard: tuple[float, ...] = ()
        if self.loss_name == "cox":
            own = targets[first]
            times, summed = baseline_hazard(own[:, TIME], own[:, EVENT], risks)
            steps = np.append(0.0, summed)[np.searchsorted(times, self.curve_times, side="right")]
            hazard = tuple(steps.tolist())
        learned = replace(
            self.learned,
            risk_quantiles=tuple(quantiles.tolist()),
            hazard=hazard,
            score_bias=() if score_sums is None else _find_bias(outputs, score_sums),
        )
        return replace(self, learned=learned)

    def explain_unlearned(self) -> str:
        """Return whether risks of the training patients, times or the baseline are missing."""
        learned = self.learned
        is_cox = self.loss_name == "cox"
        has_times = len(learned.hazard) == len(self.curve_times) if is_cox else learned.last_time
        if learned.risk_quantiles and has_times:
            return ""
        return (
            "the card has not all that survival learns from the training set; expected the risks "
            "of its patients and their times: train the model with sacmil, or give it the task "
            "that `fitted` and `calibrated` return"
        )

    def mark_rows(self, targets: Targets) -> dict[str, npt.NDArray[np.bool_]]:
        """Return the events."""
        return {"events": targets[:, EVENT] == 1}

    def strata(self, targets: Targets) -> npt.NDArray[np.int64]:
        """Return whether the event happened, and the bin of the time if bins are known."""
        bins = np.searchsorted(self.learned.edges, targets[:, TIME], side="right")
        return 2 * bins + targets[:, EVENT].astype(np.int64)

    def prepare(self, target: npt.NDArray[Any]) -> Tensor:
        """Return the weights of the likelihood's terms (2 K,), or for Cox time and event."""
        import torch

        found = torch.as_tensor(np.asarray(target, dtype=np.float64))
        if self.loss_name == "cox":
            return found
        bins = torch.as_tensor(np.searchsorted(self.learned.edges, target[:1], side="right"))
        return weigh_log_terms(bins, found[EVENT:], self.outputs, self.alpha)[0].float()

    def prepared_loss(self, outputs: Tensor, prepared: Tensor) -> Tensor:
        """Return the negative log-likelihood of the hazards; Cox's has no loss of one bag."""
        if self.loss_name == "cox":
            return (outputs * 0).sum()
        return sum_log_terms(outputs, prepared)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each bag; for Cox that of the batch, in every row."""
        import torch

        times, events = targets.unbind(-1)
        if self.loss_name == "cox":
            return cox_loss(outputs[:, 0], times, events, self.ties).expand(len(outputs))
        edges = torch.tensor(self.learned.edges, dtype=times.dtype, device=times.device)
        bins = torch.searchsorted(edges, times.contiguous(), right=True)
        return nll_row_losses(outputs, bins, events, self.alpha)

    def batch_loss(self, outputs: Tensor, prepared: Tensor) -> Tensor:
        """Return Cox's loss of several bags: outputs (B, 1) and times with events (B, 2)."""
        return cox_loss(outputs[:, 0], prepared[:, TIME], prepared[:, EVENT], self.ties)

    # --- what comes out

    def activate(self, outputs: Tensor) -> Tensor:
        """Return risk, its percentile, and survival at each time."""
        import torch
        from torch.nn.functional import logsigmoid

        z = outputs.float()
        count, device = len(self.curve_times), outputs.device
        if self.loss_name == "cox":
            risk = z
            hazard = make_constant(self.learned.hazard or (0.0,) * count, device).float()
            log_survival = -hazard * z.clamp(max=_MAX_LOG_HAZARD).exp()
        else:
            log_alive = logsigmoid(-z)
            risk = -log_alive.cumsum(-1).exp().sum(-1, keepdim=True)
            shares = make_constant(self._list_shares(), device).float()
            log_survival = log_alive @ shares.reshape(z.shape[-1], count)
        quantiles = make_constant(self.learned.risk_quantiles or (0.0,), device).float()
        percentile = (risk > quantiles).float().mean(-1, keepdim=True)
        return torch.cat([risk, percentile, log_survival.exp()], -1)

    def _list_shares(self) -> tuple[float, ...]:
        """Return which share of each bin has passed at each time of the curve, (K · times,)."""
        learned, times = self.learned, np.array(self.curve_times)
        if not learned.last_time:
            return (0.0,) * (self.outputs * len(times))
        begins = np.array([0.0, *learned.edges])
        widths = np.diff([*begins, learned.last_time])
        passed = times - begins[:, None]
        # a last bin of no width, where the last event is the largest time, has passed at once
        shares = passed / np.maximum(widths, 1e-30)[:, None]
        return tuple(np.clip(shares, 0, 1).ravel().tolist())

    def _compute_risks(self, outputs: Floats) -> Floats:
        """Return the risk of each row of outputs (n, O)."""
        if self.loss_name == "cox":
            return outputs[:, 0]
        log_alive = -np.logaddexp(0, outputs)
        risks: Floats = -np.exp(log_alive.cumsum(1)).sum(1)
        return risks

    def validation_loss(self, targets: Targets, predictions: Floats) -> float:
        """Return the mean negative log-likelihood of the curves, or Cox's loss of the risks.

        An event lies between two times of the curve; a censored patient lives at the last one.
        """
        if self.loss_name == "cox":
            import torch

            risks, known = torch.as_tensor(predictions[:, RISK]), torch.as_tensor(targets)
            return float(cox_loss(risks, known[:, TIME], known[:, EVENT], self.ties))
        alive = np.pad(predictions[:, CURVE:], ((0, 0), (1, 0)), constant_values=1.0)
        rows, events = np.arange(len(targets)), targets[:, EVENT] == 1
        before = np.searchsorted(self.curve_times, targets[:, TIME], side="left")
        after = np.minimum(before + 1, len(self.curve_times))
        likelihood = alive[rows, before] - np.where(events, alive[rows, after], 0.0)
        return float(-np.log(np.maximum(likelihood, math.exp(LEAST_LOG))).mean())

    def find_untestable(self, targets: Targets) -> str:
        """Return whether no two patients can be compared."""
        own = targets[targets[:, EVENT] == 1, TIME]
        has_pair = len(own) and targets[:, TIME].max() > own.min()
        return "" if has_pair else "holds no event before the time of another patient"

    def combine_scores(self, class_scores: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return how far the risk of instances lies above the training patients' median, (N, 1).

        The risk of an instance is that of a slide on which all instances are like it.
        """
        outputs = class_scores.astype(np.float64)
        if self.learned.score_bias:
            outputs = len(outputs) * outputs + self.learned.score_bias
        median = np.median(self.learned.risk_quantiles or (0.0,))
        return (self._compute_risks(outputs) - median).astype(np.float32)[:, None]

    def describe(self, prediction: HasValues) -> Summary:
        """Return the risk group by the median of the training patients, and survival."""
        values = [float(value) for value in prediction.values]
        percentile = round(values[PERCENTILE], 6)  # of several slides a mean may be above 0.5
        group = "high risk" if percentile > 0.5 else "low risk"
        curve = dict(zip(self.curve_times, values[CURVE:], strict=True))
        choices = [
            Choice(f"survival {self.format_time(time)}", curve[time]) for time in self.horizons
        ]
        text = f"{group}, above {percentile:.0%} of the training patients"
        return Summary(group, text, (Choice("risk percentile", percentile), *choices), 0)

    def get_curve(self, prediction: HasValues) -> Curve:
        """Return the survival curve."""
        times = (0.0, *self.curve_times)
        values = (1.0, *(float(value) for value in list(prediction.values)[CURVE:]))
        unit = f" ({self.unit})" if self.unit else ""
        return Curve(f"time{unit}", "survival", times, values)

    def explain(self, prediction: StoredPrediction) -> str:
        """Return risk and survival in sentences, and how far members of an ensemble agree."""
        text = f"The model predicts {self.describe(prediction).headline}. "
        curve = dict(zip(self.curve_times, prediction.values[CURVE:], strict=True))
        shown = [f"{curve[time]:.0%} at {self.format_time(time)}" for time in self.horizons]
        if shown:
            text += f"Expected survival: {', '.join(shown)}. "
        if (count := len(prediction.members)) > 1:
            each = [member[PERCENTILE] for member in prediction.members]
            text += f"Its {count} members place it above {min(each):.0%} to {max(each):.0%}. "
        return text + _CAUTION

    def find_spread(self, prediction: StoredPrediction) -> float | None:
        """Return that of the percentile."""
        return prediction.spread[PERCENTILE] if prediction.spread else None

    def format_time(self, time: float) -> str:
        """Return a time with its unit: "12 months"."""
        unit = self.unit.removesuffix("s") if time == 1 else self.unit
        return f"{format_number(time)} {unit}".strip()

    # --- metrics

    @property
    def metrics(self) -> Mapping[str, Metric]:
        """Concordance, AUC over time and Brier score, and those at each horizon."""
        return make_metrics(tuple(self.curve_times), tuple(self.horizons), self.format_time)

    @property
    def breakdown(self) -> Mapping[str, Mapping[str, str]]:
        """The metrics at each horizon."""
        return make_breakdown(tuple(self.horizons), self.format_time)


def _find_bias(outputs: Floats, score_sums: Floats) -> tuple[float, ...]:
    """Return what outputs (n, O) have besides the sums of instance scores (n, O)."""
    return tuple(np.median(outputs - score_sums, axis=0).tolist())
