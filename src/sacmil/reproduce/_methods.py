"""The rows of Tables I and II, and the misprint they share."""

from __future__ import annotations

from sacmil.reproduce._paper import Misprint
from sacmil.reproduce._variant import Variant

METHODS = {
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

REPEATED_STDS = Misprint(
    "all nine standard deviations of this row are the same in Table I and Table II; compare with "
    "its means loosely",
    ("DTFD-MIL", "IBMIL (DTFD)", "HIPT", "R2T-MIL", "Norma"),
)
