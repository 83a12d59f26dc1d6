"""Convert amounts of haematoxylin and eosin to the colours of a scanner."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Pixels = npt.NDArray[np.uint8]

_HEMATOXYLIN = np.array([0.69, 0.71, 0.29])
_EOSIN = np.array([0.13, 0.86, 0.42])
"""Optical density in red, green and blue."""
_MAX_AMOUNT = 2.6
"""Largest amount of either stain; more is not darker."""
_STEPS = 128


@dataclass(frozen=True)
class Stain:
    """The staining of one slide; slides differ, as they do between days and laboratories."""

    hematoxylin: float = 1.0
    eosin: float = 1.0
    warmth: float = 0.0
    """Hue of the eosin: below zero bluish, above zero orange."""
    glass: tuple[float, float, float] = (244.0, 243.0, 245.0)
    """Colour of bare glass."""

    @classmethod
    def sample(cls, random: np.random.Generator) -> Stain:
        """Return a random staining."""
        hematoxylin, eosin = random.uniform(0.92, 1.08, 2)
        glass = 243 + random.uniform(-2, 2, 3)
        return cls(hematoxylin, eosin, random.uniform(-0.05, 0.05), tuple(glass.tolist()))

    def to_rgb(self, hematoxylin: Floats, eosin: Floats) -> Pixels:
        """Return (h, w, 3), by a table of all pairs of amounts: exponents per pixel are slow."""
        steps = np.linspace(0, _MAX_AMOUNT, _STEPS)
        vector = _EOSIN + [0, 0, self.warmth]
        density = (
            steps[:, None, None] * self.hematoxylin * _HEMATOXYLIN
            + steps[None, :, None] * self.eosin * vector
        )
        table = np.rint(np.exp(-density) * self.glass).astype(np.uint8).reshape(-1, 3)
        pairs = _quantize_amount(hematoxylin)
        pairs *= _STEPS
        pairs += _quantize_amount(eosin)
        return np.asarray(table.take(pairs, axis=0))


def _quantize_amount(amount: Floats) -> npt.NDArray[np.int32]:
    scaled = amount * np.float32((_STEPS - 1) / _MAX_AMOUNT)
    scaled += np.float32(0.5)
    return np.clip(scaled, 0, _STEPS - 1, out=scaled).astype(np.int32)
