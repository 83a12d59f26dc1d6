"""Folds that keep all patients of a hospital (site) in one test set.

Stains and scanners differ by hospital, and so do labels. A model that recognises the hospital
looks better than it is unless each site is in one set only (Howard et al. 2021).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

Shares = npt.NDArray[np.float64]
"""(sites, classes + 1): each site's share of each class, and of all patients."""

_MIN_GAIN = 1e-12


def assign_sites_to_folds(
    sites: Mapping[str, str], strata: Mapping[str, int], folds: int, salt: str
) -> list[frozenset[str]]:
    """Return the patients of each fold; a site is in one fold, classes are spread evenly.

    Single moves and swaps of sites improve the balance of classes.

    Args:
        sites: of each patient.
        strata: the class of each patient.
        folds: number of folds.
        salt: another text gives another assignment.
    """
    names, shares = _compute_shares(sites, strata, salt)
    fold_of_site = _assign_greedily(shares, folds)
    while _improve_assignment(shares, fold_of_site, folds):
        pass
    fold_of = dict(zip(names, fold_of_site.tolist(), strict=True))
    return [
        frozenset(patient for patient in sites if fold_of[sites[patient]] == number)
        for number in range(folds)
    ]


def select_sites(
    sites: Mapping[str, str], strata: Mapping[str, int], share: float, salt: str
) -> frozenset[str] | None:
    """Return all patients of a few sites, about a given share of every class.

    None if no selection leaves each class on both sides.

    Args:
        sites: of each patient.
        strata: the class of each patient.
        share: of every class.
        salt: another text gives another selection.
    """
    names, shares = _compute_shares(sites, strata, salt)
    selected = np.zeros(len(names), dtype=bool)
    while True:
        now = shares[selected].sum(0)
        after = np.where(selected[:, None], now - shares, now + shares)
        loss = ((after - share) ** 2).sum(1)
        best = int(loss.argmin())
        if loss[best] >= ((now - share) ** 2).sum() - _MIN_GAIN:
            break
        selected[best] = ~selected[best]
    total = shares[selected].sum(0)
    if (total < _MIN_GAIN).any() or (total > 1 - _MIN_GAIN).any():
        return None
    selected_sites = {name for name, is_in in zip(names, selected, strict=True) if is_in}
    return frozenset(patient for patient in sites if sites[patient] in selected_sites)


def _compute_shares(
    sites: Mapping[str, str], strata: Mapping[str, int], salt: str
) -> tuple[list[str], Shares]:
    names = sorted(
        set(sites.values()), key=lambda name: hashlib.sha256(f"{salt}/{name}".encode()).digest()
    )
    labels = sorted(set(strata.values()))
    counts = np.zeros((len(names), len(labels) + 1))
    row = {name: number for number, name in enumerate(names)}
    for patient, site in sites.items():
        counts[row[site], [labels.index(strata[patient]), -1]] += 1
    return names, counts / counts.sum(0)


def _assign_greedily(shares: Shares, folds: int) -> npt.NDArray[np.int64]:
    """Assign each site, largest first, to the fold that has least of the site's classes."""
    filled = np.zeros((folds, shares.shape[1]))
    fold_of_site = np.zeros(len(shares), dtype=np.int64)
    # rounded, so that the salt decides the order of sites of almost equal size
    for site in np.argsort(-np.round(shares[:, -1], 1), kind="stable"):
        fold_of_site[site] = (filled @ shares[site]).argmin()
        filled[fold_of_site[site]] += shares[site]
    return fold_of_site


def _improve_assignment(shares: Shares, fold_of_site: npt.NDArray[np.int64], folds: int) -> bool:
    """Make the best single move or swap in place; False if none makes the folds more even.

    The measure is the sum of squares of the folds' shares. Moving v from fold f to g changes it
    by 2 (|v|² − x_f·v + x_g·v), and a swap of v and u moves v − u.
    """
    filled = np.zeros((folds, shares.shape[1]))
    np.add.at(filled, fold_of_site, shares)
    onto = shares @ filled.T  # (sites, folds)
    here = onto[np.arange(len(fold_of_site)), fold_of_site]
    gram = shares @ shares.T
    size = gram.diagonal()
    move = size[:, None] - here[:, None] + onto
    move[np.arange(len(fold_of_site)), fold_of_site] = np.inf
    across = onto[:, fold_of_site]  # (s, u): s · the shares of u's fold
    swap = size[:, None] + size - 2 * gram - here[:, None] + across.T + across - here
    swap[fold_of_site[:, None] == fold_of_site] = np.inf
    if min(move.min(), swap.min()) > -_MIN_GAIN:
        return False
    if move.min() <= swap.min():
        site, fold = np.unravel_index(move.argmin(), move.shape)
        fold_of_site[site] = fold
    else:
        one, other = np.unravel_index(swap.argmin(), swap.shape)
        fold_of_site[[one, other]] = fold_of_site[[other, one]]
    return True
