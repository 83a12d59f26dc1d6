"""The tables of the paper as printed, with their misprints, and the model of each row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

DATASETS = {"camelyon16": "CAMELYON-16", "tcga-lung": "TCGA-LUNG", "tcga-brca": "TCGA-BRCA"}
"""Titles by name, in the paper's order; it spells the last TCGA-BRAC."""
METRICS = {"accuracy": "ACC", "auc": "AUC", "f1": "F1"}
"""Titles by name, in the paper's order."""
MARKS = "†‡§¶"
"""Marks of misprints, after a row's name or a mean."""


class PaperResult(NamedTuple):
    """One value of the paper, in percent."""

    mean: float
    std: float
    """Standard deviation over the five folds."""
    marks: str = ""
    """Marks of its misprints."""


class Variant:
    """A model with options.

    Args:
        model: registered name.
        options: arguments of its constructor.
    """

    def __init__(self, model: str, **options: Any) -> None:
        self.model = model
        self.options = options

    @property
    def name(self) -> str:
        """Name of its runs, the same in every table so that tables share them.

        >>> Variant("sac_mil", position="rope").name
        'sac_mil+position=rope'
        """
        return "+".join([self.model, *(f"{key}={value}" for key, value in self.options.items())])


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper."""

    title: str
    encoder: str
    """Encoder of the features; see ``sacmil encoders``."""
    rows: Mapping[str, Variant]
    """Model of each row."""
    results: Mapping[str, Mapping[str, Mapping[str, PaperResult]]]
    """By row, dataset and metric."""
    row_marks: Mapping[str, str]
    """Marks of misprints in a whole row."""
    notes: Mapping[str, str]
    """What is wrong where a mark stands."""

    @property
    def datasets(self) -> tuple[str, ...]:
        """Datasets of the table."""
        return tuple(next(iter(self.results.values())))

    def find_marks(self, row: str, dataset: str, metric: str) -> str:
        """Return the marks of a row and of one of its cells."""
        return self.row_marks[row] + self.results[row][dataset][metric].marks


def make_table(
    title: str, encoder: str, text: str, notes: tuple[str, ...], rows: Mapping[str, Variant]
) -> PaperTable:
    """Make a table from lines of ``row | mean_std mean_std mean_std | …``.

    The three are accuracy, AUC and F1; datasets are in the order of DATASETS. A misprint has a mark
    after the name of its row, or after each mean; the notes are those of the marks, in order.

    >>> table = make_table("", "", "A† | 90.3_0.6 96.1‡_1.2 89.3_1.6", ("odd", "high"), {})
    >>> table.results["A"]["camelyon16"]["auc"], table.row_marks["A"]
    (PaperResult(mean=96.1, std=1.2, marks='‡'), '†')
    """
    results, row_marks = {}, {}
    for line in text.strip().splitlines():
        name, *cells = (part.strip() for part in line.split("|"))
        row = name.rstrip(MARKS)
        row_marks[row] = name.removeprefix(row)
        results[row] = dict(zip(DATASETS, map(_parse_cell, cells), strict=False))
    marks = dict(zip(MARKS, notes, strict=False))
    return PaperTable(title, encoder, rows, results, row_marks, marks)


def _parse_cell(cell: str) -> dict[str, PaperResult]:
    values = []
    for text in cell.split():
        marked_mean, std = text.split("_")
        mean = marked_mean.rstrip(MARKS)
        values.append(PaperResult(float(mean), float(std), marked_mean.removeprefix(mean)))
    return dict(zip(METRICS, values, strict=True))


_METHODS = {
    "AB-MIL": Variant("abmil"),
    "DS-MIL": Variant("dsmil"),
    "CLAM-SB": Variant("clam_sb"),
    "CLAM-MB": Variant("clam_mb"),
    "DTFD-MIL": Variant("dtfd"),
    "IBMIL (DTFD)": Variant("ibmil"),
    "Mamba-MIL": Variant("mambamil"),
    "Mam-MIL": Variant("mammil"),
    "Trans-MIL": Variant("transmil"),
    "HIPT": Variant("hipt"),
    "R2T-MIL": Variant("r2t"),
    "Norma": Variant("norma"),
    "SAC-MIL": Variant("sac_mil"),
}
_REPEATED_STDS = (
    "all nine standard deviations of this row are the same in Table I and Table II; compare with "
    "its means loosely"
)
_TABLE_1 = """
AB-MIL       | 83.5_1.5 84.3_1.9 79.1_1.7| 87.5_0.5 91.4_1.4 87.5_0.5| 83.3_3.8 86.6_5.0 80.3_3.2
DS-MIL       | 85.6_3.6 87.3_2.2 80.0_2.0| 88.9_1.9 94.3_6.0 88.1_1.9| 84.1_4.9 89.4‡_3.8 82.7_3.6
CLAM-SB      | 83.5_3.3 86.3_3.3 80.3_1.1| 86.3_3.4 91.3_2.1 85.4_1.3| 84.0_3.3 87.1_2.4 81.5_6.8
CLAM-MB      | 83.7_3.3 86.4_3.3 80.5_2.2| 88.3_3.4 92.9_2.1 88.2_1.0| 82.7_2.3 86.8_4.0 80.5_4.6
DTFD-MIL†    | 87.1_0.6 90.4_1.2 86.5_1.3| 88.3_1.4 93.2_2.3 88.8_1.5| 84.4_4.6 87.1_1.6 84.3_3.2
IBMIL (DTFD)†| 87.4_0.4 89.5_1.2 87.0_1.3| 89.4_2.7 93.7_1.1 89.3_0.5| 84.8_3.3 87.9_1.4 83.2_1.1
Mamba-MIL    | 86.6_0.6 94.7_1.2 85.8_1.3| 87.8_2.7 92.9_1.6 87.7_2.8| 83.3_3.4 86.5_1.0 83.2_1.6
Mam-MIL      | 88.6_0.6 94.9_1.2 87.8_1.3| 87.2_2.7 91.9_1.6 87.1_2.8| 82.3_4.0 85.5_1.2 82.2_3.6
Trans-MIL    | 86.0_4.4 90.1_6.2 85.2_1.2| 88.5_2.1 94.3_0.8 88.4_0.1| 83.4_2.0 88.7_5.2 79.7_3.4
HIPT†        | 80.8_1.3 85.1_3.7 79.4_3.5| 87.3_2.4 94.4_2.2 86.6_2.7| 84.8_4.2 86.1_2.7 84.5_1.3
R2T-MIL†     | 87.6_0.3 92.4_1.2 88.1_1.1| 88.3_1.2 93.1_1.6 87.7_2.8| 84.3_4.0 87.1_1.7 84.2_0.4
Norma†       | 89.6_0.6 95.1_1.2 88.8_1.3| 89.8_2.7 93.9_1.6 89.3_2.8| 84.8_4.0 88.5_1.2 83.2_3.6
SAC-MIL      | 90.3_0.6 96.1_1.2 89.3_1.6| 90.4_0.6 95.0_1.4 90.1_0.8| 85.4_4.2 89.1_0.5 84.9_1.3
"""
_TABLE_2 = """
AB-MIL       | 90.7_1.3 91.3_1.3 90.1_0.3| 95.1_1.1 97.7_0.5 95.5_1.0| 91.9_3.0 95.7_2.1 89.3_1.0
DS-MIL       | 91.6_1.3 94.7_3.3 91.2_1.6| 94.4_1.1 97.9_0.5 94.4_1.0| 89.1_3.1 95.6_2.6 87.0_1.4
CLAM-SB      | 93.5_1.3 95.3_0.3 91.3_1.1| 95.2_0.8 98.0_0.4 95.0_0.8| 90.5_4.0 95.1_2.0 89.2_2.6
CLAM-MB      | 93.7_3.3 95.4_3.3 90.5_2.2| 95.4_0.7 98.3_0.7 95.3_0.6| 90.8_3.3 95.8_2.2 88.1_3.7
DTFD-MIL†    | 93.4_0.6 97.5_1.2 93.5§_1.3| 94.9_1.4 98.2_2.3 94.8_1.5| 91.4_4.6 96.0_1.6 90.3_3.2
IBMIL (DTFD)†| 95.4‡_0.4 89.5‡_1.2 87.0‡_1.3| 94.4_2.7 98.4_1.1 94.2_0.5| 91.6_3.3 96.4_1.4 90.5_1.1
Mamba-MIL    | 89.6_0.6 96.1_1.2 88.8_1.3| 92.8_2.7 96.9_1.6 92.7_2.8| 91.3_4.0 95.5_1.2 89.2_3.6
Mam-MIL      | 91.1_0.6 96.4_1.2 90.8_1.3| 93.8_2.7 96.9_1.6 93.4_1.8| 91.4_1.3 95.5_1.2 89.2_3.6
Trans-MIL    | 92.7_4.4 98.1_1.2 92.1_2.6| 95.2_1.1 98.3_1.0 95.1_1.0| 91.6_4.2 95.6_2.4 89.1_3.2
HIPT†        | 90.8_1.3 95.8_3.7 89.4_3.5| 94.3_2.4 95.4_2.2 94.1_2.7| 90.8_4.2 94.1_2.7 90.5_1.3
R2T-MIL†     | 92.6_0.3 97.6_1.2 91.8_1.1| 94.9_1.2 95.1_1.6 93.7_2.8| 90.3_4.0 95.1_1.7 89.2_0.4
Norma†       | 93.4_0.6 96.1_1.2 91.1_1.3| 95.8_2.7 97.9_1.6 93.7_2.8| 91.3_4.0 95.5_1.2 91.2_3.6
SAC-MIL      | 94.1_0.6 98.5_1.2 92.5_1.6| 96.4_1.1 98.7_1.1 95.7_1.0| 92.1_2.8 96.7_1.8 91.5_3.0
"""
_POSITIONS = """
Sinusoidal| 87.7_3.3 94.5_1.7 87.5_1.2| 89.3_3.4 93.8_2.1 88.6_1.0| 83.8_0.3 87.1_2.4 83.3_6.8
ALiBi     | 88.5_1.0 95.3_1.9 88.1_1.7| 89.5_1.9 94.7_1.8 85.3_2.6| 84.4_2.1 87.5_1.9 84.5_3.2
ROPE      | 89.1_3.6 94.9_2.2 88.5_4.3| 89.8_1.6 94.4_2.1 86.1_1.1| 84.8_4.9 88.8_5.4 84.0_6.7
2D ROPE   | 89.6_3.6 95.3_2.2 88.6_4.3| 89.8§_1.6 94.4§_2.1 89.7_1.1| 84.1_4.9 86.8_5.4 84.8_6.7
PEG       | 89.4_3.2 94.3_3.3 87.9_1.1| 88.9_3.4 94.1_2.1 88.4_1.3| 84.0_3.3 88.1_2.4 84.5_6.8
PPEG      | 89.7_3.3 96.4‡_0.8 89.1_0.9| 89.5_3.4 94.5_2.1 89.6_1.0| 84.8_1.3 87.1_2.4 84.3_6.8
w/o PROPE | 87.8_0.9 94.3_1.1 87.8_1.3| 89.7_1.6 94.3_0.5 89.4_1.8| 83.8_3.2 87.8_0.5 83.9_1.3
PROPE     | 90.3_0.6 96.1_1.2 89.3_1.6| 90.4_0.6 95.0_1.4 90.1_0.8| 90.4†_0.6 95.0†_1.4 90.1†_0.8
"""
_CORRELATIONS = """
Cycle-MLP  | 89.5_1.5 92.5_3.5 89.0_1.8
Chord-Mixer| 90.0_1.4 93.0_0.5 89.5†_1.2
Nyström    | 88.5_1.6 92.0_0.4 88.0_1.3
Flash-Attn | 89.0_1.5 93.5_0.4 89.0_1.2
SAC-MIL    | 90.3_0.6 96.1_1.2 89.3_1.6
"""
_LAMBDA = """
λ = 1†   | 89.9_1.3 91.0_1.3 89.7¶_0.3| 94.8‡_1.1 97.4‡_0.5 95.2‡_1.0| 91.6‡_3.0 95.4‡_2.1 89.0‡_1.0
λ = 512  | 90.3_0.6 96.1_1.2 89.3_1.6| 90.4_0.6 95.0_1.4 90.1_0.8| 85.4_4.2 89.1_0.5 84.9_1.3
λ = 2048†| 89.8_1.3 95.8_0.3 89.0_1.1| 90.1_0.8 94.7_0.4 89.7_0.8| 85.0_4.0 88.7_2.0 88.9§_2.6
λ = 4096†| 89.7_3.3 95.7_3.3 89.0_2.2| 90.0_0.7 94.6_0.7 89.6_0.6| 84.9_3.3 88.5_2.2 88.0§_3.7
λ = 8192†| 89.9_0.6 96.0_1.2 89.0_1.3| 90.2_1.4 94.7_2.3 89.6_1.5| 85.1_4.6 88.8_1.6 88.9§_3.2
"""

TABLES = {
    "table1": make_table(
        "Table I: methods over ResNet50 features",
        "resnet50",
        _TABLE_1,
        (_REPEATED_STDS, "above SAC-MIL's 89.1, printed in bold as the highest"),
        _METHODS,
    ),
    "table2": make_table(
        "Table II: methods over UNI features",
        "uni_v1",
        _TABLE_2,
        (
            _REPEATED_STDS,
            "AUC and F1 repeat Table I; the accuracy beside them is above SAC-MIL's 94.1, printed "
            "in bold as the highest",
            "above SAC-MIL's 92.5, printed in bold as the highest",
        ),
        _METHODS,
    ),
    "positions": make_table(
        "Table III and the appendix: position encodings of SAC-MIL",
        "resnet50",
        _POSITIONS,
        (
            "the row of TCGA-LUNG again; Table I has 85.4, 89.1 and 84.9",
            "above PROPE's 96.1, printed in bold and called the best",
            "the same as ROPE's, the standard deviation too",
        ),
        {
            "Sinusoidal": Variant("sac_mil", position="sinusoidal"),
            "ALiBi": Variant("sac_mil", position="alibi"),
            "ROPE": Variant("sac_mil", position="rope"),
            "2D ROPE": Variant("sac_mil", position="rope2d"),
            "PEG": Variant("sac_mil", position="peg"),
            "PPEG": Variant("sac_mil", position="ppeg"),
            "w/o PROPE": Variant("sac_mil", position="none"),
            "PROPE": Variant("sac_mil"),
        },
    ),
    "correlations": make_table(
        "Table IV: mixing of instances in SAC-MIL",
        "resnet50",
        _CORRELATIONS,
        ("above SAC-MIL's 89.3, printed in bold as the highest",),
        {
            "Cycle-MLP": Variant("sac_mil", correlation="cyclemlp"),
            "Chord-Mixer": Variant("sac_mil", correlation="chordmixer"),
            "Nyström": Variant("sac_mil", correlation="nystrom"),
            "Flash-Attn": Variant("sac_mil", correlation="attention"),
            "SAC-MIL": Variant("sac_mil"),
        },
    ),
    "lambda": make_table(
        "Appendix: λ, the scale of PROPE's radius",
        "resnet50",
        _LAMBDA,
        (
            "all nine standard deviations are those of another row of Table II (AB-MIL, CLAM-SB, "
            "CLAM-MB and DTFD-MIL, in this order): not measurements of λ, and no target",
            "far above λ = 512, printed in bold as the highest",
            "above λ = 512, printed in bold as the highest",
            "above the 89.3 of λ = 512, printed in bold as the highest",
        ),
        {
            "λ = 1": Variant("sac_mil", scale=1.0),
            "λ = 512": Variant("sac_mil"),
            "λ = 2048": Variant("sac_mil", scale=2048.0),
            "λ = 4096": Variant("sac_mil", scale=4096.0),
            "λ = 8192": Variant("sac_mil", scale=8192.0),
        },
    ),
}
"""By name of the experiment."""
