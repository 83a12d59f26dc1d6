"""Folds that keep hospitals whole: a site is tested on, or it is not.

Stains and scanners differ by hospital, and so do labels; a model that recognises the hospital
looks better than it is unless its sites are kept together (Howard et al. 2021).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

Shares = npt.NDArray[np.float64]
"""(sites, classes + 1): what share of each class, and of all patients, a site has."""

_MIN_GAIN = 1e-12


def assign_sites_to_folds(
    sites: Mapping[str, str], strata: Mapping[str, int], folds: int, salt: str
) -> list[frozenset[str]]:
    """Patients of each fold, sites whole, classes as evenly spread as moves and swaps can.

    Args:
        sites: of each patient.
        strata: the class of each patient.
        folds: how many.
        salt: another text, another division.
    """
    names, shares = _compute_shares(sites, strata, salt)
    place = _assign_greedily(shares, folds)
    while _improve_assignment(shares, place, folds):
        pass
    fold_of = dict(zip(names, place.tolist(), strict=True))
    return [
        frozenset(patient for patient in sites if fold_of[sites[patient]] == number)
        for number in range(folds)
    ]


def select_sites(
    sites: Mapping[str, str], strata: Mapping[str, int], share: float, salt: str
) -> frozenset[str] | None:
    """Patients of a few whole sites that are about a share of every class.

    None where no choice leaves each class on both sides.

    Args:
        sites: of each patient.
        strata: the class of each patient.
        share: how much of every class.
        salt: another text, another choice.
    """
    names, shares = _compute_shares(sites, strata, salt)
    chosen = np.zeros(len(names), dtype=bool)
    while True:
        now = shares[chosen].sum(0)
        after = np.where(chosen[:, None], now - shares, now + shares)
        loss = ((after - share) ** 2).sum(1)
        best = int(loss.argmin())
        if loss[best] >= ((now - share) ** 2).sum() - _MIN_GAIN:
            break
        chosen[best] = ~chosen[best]
    taken = shares[chosen].sum(0)
    if (taken < _MIN_GAIN).any() or (taken > 1 - _MIN_GAIN).any():
        return None
    inside = {name for name, is_in in zip(names, chosen, strict=True) if is_in}
    return frozenset(patient for patient in sites if sites[patient] in inside)


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
    """Each site to the fold that has least of what the site brings; the largest first."""
    filled = np.zeros((folds, shares.shape[1]))
    place = np.zeros(len(shares), dtype=np.int64)
    # rounded, so that sites of nearly one size go by the salt's order
    for site in np.argsort(-np.round(shares[:, -1], 1), kind="stable"):
        place[site] = (filled @ shares[site]).argmin()
        filled[place[site]] += shares[site]
    return place


def _improve_assignment(shares: Shares, fold_of_site: npt.NDArray[np.int64], folds: int) -> bool:
    """Make the best single move or swap in place; False where none makes folds more even.

    Evenness is the sum of squares of what the folds have. Moving v from fold f to g changes it
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
    across = onto[:, fold_of_site]  # (s, u): s · what u's fold has
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
