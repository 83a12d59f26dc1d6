"""Normalises a model's scores, and gives the normalised values colours.

The colour scale goes from dark blue over green to yellow. Equal steps look equally far, because it
is an even path through OKLab (Ottosson 2020), from which tests/heatmap/test_colors.py computes it
again. Its hues avoid the pink and violet of stained tissue. Lightness always rises, so that it also
works in grey.

Scores that add to a value or take from it have a second scale: blue, white at zero, red. Its halves
mirror each other in lightness, so that neither sign looks stronger.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from sacmil.errors import ConfigError, RunError, suggest_names
from sacmil.results.prediction import rank_scores
from sacmil.slides.readers import Pixels

Floats = npt.NDArray[np.float64]
Normalization = Literal["raw", "minmax", "rank", "diverging"]
NORMALIZATIONS: tuple[Normalization, ...] = get_args(Normalization)

NORMALIZATION_DESCRIPTIONS: dict[Normalization, str] = {
    "raw": "raw: as the model gives it",
    "minmax": "min-max: 0 is the lowest of this slide, 1 the highest",
    "rank": "rank: share of this slide's tiles that score lower",
    "diverging": "no color is zero, the strongest is the largest effect",
}
"""Descriptions in the notes of pictures."""

COLOR_SCALE: Pixels = np.frombuffer(
    bytes.fromhex(
        "231b71231c72241d74241e75241f7624207725217825227a25237b25247c25257d26267e26277f262881"
        "262982262a83262b84262c85262d86262f8727308927318a27328b27338c27348d27358e27368f273790"
        "273891273992273a93273b94263c95263d96263f9726409826419926429a26439b25449d25459e25469f"
        "2547a02548a12449a2244ba3244ca4234da5234ea6234fa72250a82251a92152a92153aa2055ab2056ac"
        "1f57ad1e58ad1e59ae1d5aaf1c5baf1c5db01b5eb01a5fb11960b11861b21763b21664b21565b31466b3"
        "1367b31268b41169b40f6bb40e6cb40c6db50b6eb5096fb50770b50571b50373b50174b50075b60076b6"
        "0077b60078b60079b6007ab6007bb6007db6007eb6007fb60080b60081b60082b60083b60084b60085b6"
        "0086b60087b60089b6008ab6008bb6008cb6008db6008eb6008fb60090b60091b60092b50093b50094b5"
        "0095b50096b50097b50098b50099b4009ab4009bb4009cb3009db3009eb3009fb300a0b200a1b200a2b1"
        "00a3b100a4b100a5b000a6b000a7af00a8af00a9ae00aaae00abad00acad00adac00aeac00afab00b0ab"
        "00b1aa00b2aa00b2a900b3a800b4a800b5a700b6a600b7a600b8a500b9a506baa40cbaa311bba316bca2"
        "1abda11dbea121bfa024bf9f27c09e2ac19e2dc29d30c39c33c49b35c49a38c59a3ac6993cc7983fc797"
        "41c89643c99545ca9447ca9349cb924bcc914dcd904fcd8f51ce8e53cf8c55d08b57d08a59d1895bd288"
        "5dd2875ed38660d48462d58364d58266d68167d78069d87e6bd87d6dd97c6eda7b70da7a72db7874dc77"
        "75dd7677dd7579de747adf737ce0717ee1707fe16f81e26e83e36d85e46c86e56b88e56a8ae6698ce768"
        "8ee76791e86693e96595e96498ea639aeb619ceb609fec5fa1ec5ea4ed5da6ed5ca9ee5babee5aaeee59"
        "b0ef58b3ef57b5f056b8f055bbf054bdf153c0f152c2f151c5f250c7f24fcaf24eccf34dcef34cd1f34b"
        "d3f34ad6f44ad8f449dbf448ddf447e0f546e2f545e4f544e7f543e9f543ebf642eef641f0f640f2f63f"
        "f5f63ef7f73ef9f73dfcf73c"
    ),
    np.uint8,
).reshape(-1, 3)
"""(256, 3), the colour of the lowest value first."""

DIVERGING_COLOR_SCALE: Pixels = np.frombuffer(
    bytes.fromhex(
        "0645a50747a60948a80b49a90d4bab0f4cac114ead134faf1551b01652b21853b31a55b41b56b61d58b7"
        "1f59b8205bba225cbb245dbc255fbe2760bf2862c02a63c22c65c32d66c42f67c53069c7326ac8346cc9"
        "356dca376fcb3870cd3a72ce3c73cf3d74d03f76d14177d24279d4447ad5457cd6477dd7497fd84a80d9"
        "4c81da4e83db4f84dc5186dd5387de5489e0568ae1588ce2598de35b8ee45d90e55e91e66093e76294e8"
        "6396e96597ea6799eb699aec6a9bed6c9dee6e9eef6fa0f071a1f173a3f275a4f276a6f378a7f47aa8f5"
        "7caaf67eabf680adf781aef883b0f885b1f987b2f989b4fa8bb5fa8db7fb8fb8fb91b9fc93bbfc95bcfc"
        "97befd99bffd9bc0fd9dc2fd9fc3fea1c4fea3c6fea5c7fea7c8fea9cafeaccbfeaeccfeb0cefeb2cffe"
        "b4d0feb6d2feb8d3febad4febcd5febed7fec1d8fec3d9fec5dafdc7dcfdc9ddfdcbdefdcedffcd0e1fc"
        "d2e2fcd4e3fcd6e4fbd8e6fbdbe7fbdde8fadfe9fae1eaf9e3ecf9e6edf8e8eef8eaeff8ecf0f7eef1f7"
        "f1f3f6f3f4f5f5f5f5f5f3f3f6f1f1f6efeef7eeecf7eceaf8eae8f8e8e6f8e6e4f9e4e2f9e3e0f9e1dd"
        "f9dfdbfaddd9fadbd7fad9d5fad8d3fad6d1fbd4cffbd2cdfbd0cafbcec8fbccc6fbcbc4fbc9c2fbc7c0"
        "fbc5befbc3bcfbc1bafbbfb8fabeb6fabcb4fabab2fab8b0fab6aef9b4acf9b2aaf9b1a8f8afa6f8ada4"
        "f8aba2f7a9a0f7a79ef6a69cf6a49af5a298f5a096f49e94f49c92f39a90f2998ef2978cf1958bf09389"
        "ef9187ef9085ee8e83ed8c81ec8a80eb897eea877ce9857ae88379e78277e68075e57e73e47c72e37b70"
        "e2796ee1776ddf766bde746add7268dc7166db6f65da6d63d86c61d76a60d6685ed5665cd4655bd36359"
        "d16158d06056cf5e54ce5c53cc5b51cb5950ca574ec9564cc7544bc65249c55048c44f46c24d45c14b43"
        "c04a41bf4840bd463ebc443dbb433bb9413ab83f38b73d37b53c35b43a34b23832b13631b0352fae332e"
        "ad312cab2f2baa2d29a92c28a72a26a62825a42623a32422a12220a0201f9e1e1d9d1c1c9b1a1a9a1819"
        "981517971316951014940d12920a11"
    ),
    np.uint8,
).reshape(-1, 3)
"""(257, 3), blue to red: the colour of the lowest value first, that of zero in the middle."""


def get_color_scale(normalization: str) -> Pixels:
    """Return the colours of a normalisation, the lowest value first."""
    return DIVERGING_COLOR_SCALE if normalization == "diverging" else COLOR_SCALE


def apply_color_scale(positions: Floats, scale: Pixels = COLOR_SCALE) -> Pixels:
    """Return the RGB colours, (…, 3), of positions on a scale, 0 to 1."""
    last = len(scale) - 1
    return scale[np.floor(np.clip(positions, 0, 1) * last + 0.5).astype(np.intp)]


def normalize_scores(scores: npt.ArrayLike, normalization: str) -> Floats:
    """Normalise the scores of one slide, (N,).

    minmax and rank lie in 0 to 1; equal scores get equal values, and 0.5 if all are equal.
    rank is the share of the other tiles that score lower; ties count half. diverging divides by
    the largest absolute score: zero stays zero, and values lie in -1 to 1.

    >>> normalize_scores([3.0, 1.0, 1.0, 9.0], "rank").round(3).tolist()
    [0.667, 0.167, 0.167, 1.0]
    >>> normalize_scores([-1.0, 0.0, 4.0], "diverging").tolist()
    [-0.25, 0.0, 1.0]

    Args:
        scores: (N,), finite.
        normalization: raw, minmax, rank or diverging.
    """
    if normalization not in NORMALIZATIONS:
        raise ConfigError(
            f"there is no normalisation {normalization!r}; "
            f"{suggest_names(normalization, NORMALIZATIONS)}"
        )
    values = np.asarray(scores, dtype=np.float64)
    not_finite = int((~np.isfinite(values)).sum())
    if values.ndim != 1 or not len(values) or not_finite:
        raise RunError(
            f"scores have shape {values.shape}, {not_finite} of them NaN or infinite; expected one "
            "finite number per tile"
        )
    if normalization == "raw":
        return values
    if normalization == "diverging":
        return values / (np.abs(values).max() or 1.0)
    return _scale_minmax(values) if normalization == "minmax" else rank_scores(values)


def to_scale_positions(values: Floats, normalization: str) -> tuple[Floats, float, float]:
    """Return positions on the colour bar, (N,) in 0 to 1, and the values at its two ends."""
    if normalization == "diverging":
        return (values + 1) / 2, -1.0, 1.0
    if normalization != "raw":
        return values, 0.0, 1.0
    return _scale_minmax(values), float(values.min()), float(values.max())


def _scale_minmax(values: Floats) -> Floats:
    low, high = values.min(), values.max()
    if low == high:
        return np.full(len(values), 0.5)
    # halved first: the difference of two finite numbers may be infinite
    return np.asarray(np.clip((values / 2 - low / 2) / (high / 2 - low / 2), 0, 1))
