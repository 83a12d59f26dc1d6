"""Losses of survival as functions of torch tensors, and the bins of discrete time.

Half precision is computed in float32. The module itself imports without torch.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from torch import Tensor

Floats = npt.NDArray[np.float64]
Ties = Literal["efron", "breslow"]
TIES = ("efron", "breslow")
LEAST_LOG = math.log(1e-7)
"""Logarithms of probabilities are clamped here; the gradient is zero below."""


@overload
def time_bins(times: Tensor, events: Tensor, k: int) -> Tensor: ...
@overload
def time_bins(times: npt.ArrayLike, events: npt.ArrayLike, k: int) -> Floats: ...
def time_bins(times: npt.ArrayLike | Tensor, events: npt.ArrayLike | Tensor, k: int) -> Any:
    """Return the inner edges of bins with equally many events, rising; of tensors a tensor.

    There are k − 1, or fewer if quantiles coincide or are the first time of an event.

    Args:
        times: of the patients of a training set (n,).
        events: 1 where the event happened, 0 where the patient was censored (n,).
        k: number of bins.

    Raises:
        ValueError: there are fewer events than bins, or values are missing.
    """
    follow_up, status = np.asarray(times, np.float64), np.asarray(events, np.float64)
    if not (np.isfinite(follow_up).all() and np.isin(status, (0, 1)).all()):
        raise ValueError("times or events are missing; expected finite times, and events 0 or 1")
    happened = follow_up[status == 1]
    if k < 1:
        raise ValueError(f"k is {k}; expected one bin or more")
    if len(happened) < k:
        raise ValueError(
            f"there are {len(happened)} events for {k} bins; expected at least one for each"
        )
    edges = np.unique(np.quantile(happened, np.arange(1, k) / k))
    found: Floats = edges[edges > happened.min()]
    if not hasattr(times, "is_floating_point"):
        return found
    import torch

    assert isinstance(times, torch.Tensor)
    return torch.tensor(
        found, dtype=times.dtype if times.is_floating_point() else None, device=times.device
    )


def discrete_nll(logits: Tensor, bins: Tensor, events: Tensor, alpha: float = 0.0) -> Tensor:
    """Negative log-likelihood of discrete hazards, the mean over patients.

    A hazard is the sigmoid of a logit: the probability of the event in a bin for who reached it.

    Args:
        logits: one per bin (B, K).
        bins: that of each patient's time (B,).
        events: 1 where the event happened, 0 where the patient was censored (B,).
        alpha: by how much censored patients count less, 0 to 1.

    Returns:
        A scalar.
    """
    if len(bins) and not 0 <= int(bins.min()) <= int(bins.max()) < logits.shape[-1]:
        raise ValueError(
            f"bins run from {int(bins.min())} to {int(bins.max())}; expected 0 to "
            f"{logits.shape[-1] - 1}, one for each logit"
        )
    return nll_row_losses(logits, bins, events, alpha).mean()


def nll_row_losses(logits: Tensor, bins: Tensor, events: Tensor, alpha: float) -> Tensor:
    """Return the loss of each patient (B,): as for ``discrete_nll``."""
    weights = weigh_log_terms(bins, events, logits.shape[-1], alpha)
    return sum_log_terms(logits, weights.to(_to_full_precision(logits)))


def weigh_log_terms(bins: Tensor, events: Tensor, count: int, alpha: float) -> Tensor:
    """Return the weight of each term in a patient's likelihood (B, 2 K), as for ``discrete_nll``.

    The terms are the log of survival through each bin, then the log of the hazard of each. An
    event counts survival through the bin before and the hazard; a censored patient survives.
    """
    import torch

    steps = torch.arange(count, device=bins.device)
    happened = events.bool()[:, None]
    last_survived = bins.long()[:, None] - happened.long()
    share = 1 - alpha * (~happened).double()
    hazards = (steps == bins.long()[:, None]) & happened
    return torch.cat([(steps == last_survived) * share, hazards.double()], 1)


def sum_log_terms(logits: Tensor, weights: Tensor) -> Tensor:
    """Return the loss: logits (…, K) and the weights of their terms (…, 2 K) to (…)."""
    return -(_log_terms(logits) * weights).sum(-1)


def _log_terms(logits: Tensor) -> Tensor:
    """Return log survival through each bin and log hazards, clamped: (…, K) to (…, 2 K)."""
    import torch
    from torch.nn.functional import logsigmoid

    z = _to_full_precision(logits)
    # sums of logarithms: torch's product makes the GPU wait in the backward pass
    survival = logsigmoid(-z).cumsum(-1)
    return torch.cat([survival, logsigmoid(z)], -1).clamp(min=LEAST_LOG)


def cox_loss(log_hazards: Tensor, times: Tensor, events: Tensor, ties: Ties = "efron") -> Tensor:
    """Negative log partial likelihood of Cox's model, divided by the number of events.

    Args:
        log_hazards: one per patient (B,).
        times: of the patients (B,).
        events: 1 where the event happened, 0 where the patient was censored (B,).
        ties: how events at the same time are counted, efron or breslow.

    Returns:
        A scalar; zero, without a gradient, if there is no event.
    """
    import torch

    if ties not in TIES:
        raise ValueError(f"ties is {ties!r}; expected {' or '.join(TIES)}")
    if not log_hazards.shape == times.shape == events.shape or log_hazards.ndim != 1:
        shapes = [tuple(values.shape) for values in (log_hazards, times, events)]
        raise ValueError(f"log_hazards, times and events are {shapes}; expected (B,) each")
    eta = _to_full_precision(log_hazards)
    happened = events.bool()
    if not bool(happened.any()):
        return (eta * 0).sum()
    own_times = times[happened]
    at_risk = times[None] >= own_times[:, None]  # (events, B)
    # the largest of each risk set is taken out: one of all would underflow in the others
    largest = eta.detach().expand(len(own_times), -1).masked_fill(~at_risk, -math.inf).amax(1)
    scaled = (eta - largest[:, None]).masked_fill(~at_risk, -math.inf).exp()
    total = scaled.sum(1)
    if ties == "efron":
        same = (times[None] == own_times[:, None]) & happened
        tied = same.sum(1)
        # the number of events at this time that come before in the table
        earlier = torch.tril(same[:, happened], diagonal=-1).sum(1)
        total = total - earlier.to(eta) / tied * (scaled * same).sum(1)
    likelihood = eta[happened] - largest - total.log()
    return -likelihood.sum() / len(own_times)


def _to_full_precision(values: Tensor) -> Tensor:
    """Convert half precision to float32; float64 stays."""
    import torch

    return values.to(torch.promote_types(values.dtype, torch.float32))
