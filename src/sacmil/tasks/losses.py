"""Losses of ordered levels, several labels and numbers, as functions of torch tensors.

No function waits for the device or branches on data, so that a CUDA graph can hold them. Half
precision is computed in float32. The module itself imports without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from torch import Tensor

Floats = npt.NDArray[np.float64]


def corn_loss(logits: Tensor, y: Tensor) -> Tensor:
    """Conditional ordinal regression (CORN, Shi et al. 2021), the formula of a batch.

    Task k is "above k, given at least k". It counts only rows that reach level k, and the mean is
    over all rows of all tasks. P(y > k) is the product of the first k + 1 sigmoids.

    Args:
        logits: one per task (B, K−1).
        y: levels 0..K−1 (B,).

    Returns:
        A scalar.
    """
    losses = _threshold_losses(logits, y)
    is_reached = y[:, None] >= _thresholds(logits)
    return losses.masked_fill(~is_reached, 0).sum() / is_reached.sum()


def corn_row_losses(logits: Tensor, y: Tensor) -> Tensor:
    """Return the CORN loss of each row as a batch of its own (B,): as for ``corn_loss``."""
    losses = _threshold_losses(logits, y)
    is_reached = y[:, None] >= _thresholds(logits)
    return losses.masked_fill(~is_reached, 0).sum(1) / is_reached.sum(1)


def coral_row_losses(logits: Tensor, y: Tensor) -> Tensor:
    """Return the CORAL loss of each row (B,): as for ``coral_loss``."""
    return _threshold_losses(logits, y).sum(1)


def coral_loss(logits: Tensor, y: Tensor, importance: Tensor | None = None) -> Tensor:
    """Consistent rank logits (CORAL, Cao et al. 2020): the sum over thresholds, the mean over rows.

    Args:
        logits: one per threshold (B, K−1).
        y: levels 0..K−1 (B,).
        importance: the weight of each threshold (K−1,); each is 1 by default.

    Returns:
        A scalar.
    """
    losses = _threshold_losses(logits, y)
    if importance is not None:
        losses = losses * importance.to(losses)
    return losses.sum(1).mean()


def multilabel_loss(logits: Tensor, y: Tensor, pos_weight: Tensor | None = None) -> Tensor:
    """Mean cross-entropy over the labels that a row has; 0 for a row without any.

    Args:
        logits: one per label (B, L).
        y: 0, 1 or NaN for a missing label (B, L); values between are soft labels.
        pos_weight: the weight of each label's positives (L,); each is 1 by default.

    Returns:
        The loss of each row (B,).
    """
    from torch.nn.functional import logsigmoid

    z = _to_full_precision(logits)
    is_missing = y.isnan()
    wanted = y.to(z.dtype).masked_fill(is_missing, 0)
    positives = wanted if pos_weight is None else wanted * pos_weight.to(z)
    losses = -positives * logsigmoid(z) - (1 - wanted) * logsigmoid(-z)
    observed = (~is_missing).sum(1)
    return losses.masked_fill(is_missing, 0).sum(1) / observed.clamp(min=1)


def huber_loss(outputs: Tensor, targets: Tensor, delta: float = 1.0) -> Tensor:
    """Mean over the targets of a row: squared error / 2 up to delta, linear beyond.

    Args:
        outputs: predicted numbers (B, T).
        targets: true numbers (B, T).
        delta: the error from which on the loss is linear.

    Returns:
        The loss of each row (B,).
    """
    from torch.nn import functional

    predicted = _to_full_precision(outputs)
    wanted = targets.to(predicted.dtype)
    losses = functional.huber_loss(predicted, wanted, reduction="none", delta=delta)
    return losses.mean(1)


def prepare_terms(signs: Floats, weights: Floats) -> Tensor:
    """Return the terms of a loss that ``sum_terms`` adds up, (2, n) in float32.

    Args:
        signs: −1 where a logit should be high, 1 where it should be low (n,).
        weights: of the terms (n,).
    """
    import torch

    return torch.tensor(np.stack([signs, weights]), dtype=torch.float32)


def sum_terms(logits: Tensor, terms: Tensor) -> Tensor:
    """Return the weighted sum of cross-entropies log(1 + exp(sign · logit)): (n,) to a scalar.

    These are few kernels: on a GPU a step of a small model is as long as its launches.
    """
    from torch.nn.functional import softplus

    return (softplus(logits * terms[0]) * terms[1]).sum()


def _threshold_losses(logits: Tensor, y: Tensor) -> Tensor:
    """Return the cross-entropy of "above k" at each threshold: (B, K−1)."""
    from torch.nn.functional import logsigmoid

    z = _to_full_precision(logits)
    is_above = y[:, None] > _thresholds(logits)
    return -logsigmoid(z.where(is_above, -z))


def _thresholds(logits: Tensor) -> Tensor:
    import torch

    return torch.arange(logits.shape[1], device=logits.device)


def _to_full_precision(values: Tensor) -> Tensor:
    """Convert half precision to float32; float64 stays."""
    import torch

    return values.to(torch.promote_types(values.dtype, torch.float32))
