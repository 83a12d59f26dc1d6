"""Makes goldens.h5 from a folder of whole goldens: python trim.py FOLDER.

Nothing of the references' figures is changed, only left out or expressed more briefly:

- few, wide instances and the layer that takes them are written in the basis those instances span,
  and a layer behind that as the product of two factors on the span of what it takes (the same
  numbers come out; gradients of the first layer, which see more than the span, are left out);
- of long outputs some rows are kept, named by ``rows``;
- of runs in both precisions the one in float64 is kept;
- parameters and inputs drawn by a rule (below) are left out; their names, shapes and rules stay;
- arrays that are equal are stored once, and the gradients' figures of a golden as one table.
"""

from __future__ import annotations

import sys
from pathlib import Path

import h5py
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from drawn import RULES, drawn

NAMES = [
    "abmil_ibmil_plain",
    "abmil_official",
    "abmil_wsi_gated_relu",
    "abmil_wsi_gated_tanh",
    "abmil_wsi_relu",
    "chordmixer",
    "clam_mb",
    "clam_sb",
    "cyclemlp",
    "dsmil_c1",
    "dsmil_c2",
    "dsmil_c2_linq",
    "dtfd",
    "hipt_gp",
    "hipt_lgp",
    "ibmil_abmil_cat",
    "ibmil_abmil_sub",
    "ibmil_dtfd_full",
    "ibmil_dtfd_tier2",
    "ibmil_kmeans",
    "longnet",
    "mambamil_bimamba",
    "mambamil_mamba",
    "mambamil_srmamba_rate7",
    "mammil",
    "maxmil_rrt",
    "maxpool_ibmil",
    "meanmil_rrt",
    "meanpool_ibmil",
    "mil_fc_clam",
    "norma",
    "norma_peg1d",
    "nystrom",
    "nystrom_009",
    "pe_alibi",
    "pe_peg",
    "pe_peg_conv1d",
    "pe_ppeg",
    "pe_ppeg_transmil",
    "pe_prope",
    "pe_rope1d",
    "pe_rope2d",
    "pe_sinusoidal",
    "r2tmil",
    "r2tmil_c16",
    "r2tmil_mlp",
    "smooth_top1_svm",
    "transmil",
    "transmil_ny009",
]
NARROWED = {  # first layer, then the layers that take its output
    "abmil_official": ("feature_extractor_part2.0", "attention.0"),
    "abmil_wsi_gated_relu": ("feature.0", "attention_a.0", "attention_b.0"),
    "abmil_wsi_gated_tanh": ("feature.0", "attention_a.0", "attention_b.0"),
}
SOME_ROWS = ["pe_prope", "pe_rope1d", "pe_rope2d", "pe_sinusoidal", "nystrom", "nystrom_009"]
SOME_ROWS += ["pe_peg", "pe_peg_conv1d", "pe_ppeg"]
ROWS = np.r_[0:4, 4:300:37]

Arrays = dict[str, np.ndarray]


def narrowed(arrays: Arrays, first: str, *behind: str) -> Arrays:
    """Wide layers on the span of what they take."""
    out = {key: v for key, v in arrays.items() if not (f"/{first}." in key and "grad" in key)}
    weight, bias = arrays[f"sd/{first}.weight"], arrays[f"sd/{first}.bias"]
    basis = span(arrays["x"])
    out["x"] = (arrays["x"] @ basis).astype(np.float32)
    out[f"sd/{first}.weight"] = (weight @ basis).astype(np.float32)
    taken = np.maximum(arrays["x"].astype(np.float64) @ weight.T + bias, 0)
    for layer in behind:
        factor = out.pop(f"sd/{layer}.weight") @ span(taken)
        out[f"sd/{layer}.weight@left"] = factor.astype(np.float32)
        out[f"sd/{layer}.weight@right"] = span(taken).T.astype(np.float32)
    return out


def span(rows: np.ndarray) -> np.ndarray:
    """An orthonormal basis, as columns, of what some rows span."""
    return np.linalg.svd(rows.astype(np.float64), full_matrices=False)[2].T


def some_rows(arrays: Arrays) -> Arrays:
    """Long outputs at some rows only."""
    out = {
        key: value[ROWS] if "out" in key and value.ndim and len(value) == 300 else value
        for key, value in arrays.items()
    }
    return out | {"rows": ROWS}


def without_drawn(arrays: Arrays) -> Arrays:
    """What follows from a rule as one line of text: name, rule, index, shape."""
    out, lines = dict(arrays), []
    parameters = [key for key in arrays if key.startswith("B/sd/")]
    for key in ["B/x", *parameters]:
        value, index = arrays[key], parameters.index(key) if key in parameters else 0
        rule = next((r for r in RULES if np.array_equal(drawn(value.shape, r, index), value)), None)
        if rule:
            lines.append(" ".join([key, rule, str(index), *map(str, value.shape)]))
            del out[key]
    return out | {"drawn": np.frombuffer("\n".join(lines).encode(), dtype=np.uint8)}


def trimmed(folder: Path, name: str) -> Arrays:
    """One golden, made brief."""
    with np.load(folder / f"{name}.npz", allow_pickle=False) as file:
        unused = ("B/out/", "meta")
        arrays = {key: file[key] for key in file if not key.startswith(unused)}
    if name in NARROWED:
        arrays = narrowed(arrays, *NARROWED[name])
    arrays = some_rows(arrays) if name in SOME_ROWS else arrays
    arrays = without_drawn(arrays) if "B/x" in arrays else arrays
    return with_one_table_of_gradients(arrays)


def with_one_table_of_gradients(arrays: Arrays) -> Arrays:
    """The few figures of each of many gradients, together, with their names."""
    names = [key for key in arrays if key.startswith(("grad/", "B/gradnorm64/"))]
    out = {key: value for key, value in arrays.items() if key not in names}
    if names:
        out["gradients"] = np.array([arrays[key] for key in names])
        out["gradient_names"] = np.frombuffer("\n".join(names).encode(), dtype=np.uint8)
    return out


def main() -> None:
    """Write goldens.h5 beside this file: a group per golden, links to what is there already."""
    stored: dict[tuple[bytes, str, tuple[int, ...]], h5py.Dataset] = {}
    target = Path(__file__).parent / "goldens.h5"
    with h5py.File(target, "w", libver=("v110", "v110")) as file:
        for name in NAMES:
            group = file.create_group(name)
            for key, value in trimmed(Path(sys.argv[1]), name).items():
                same = (value.tobytes(), str(value.dtype), value.shape)
                if same in stored:
                    group[key.replace("/", "|")] = stored[same]
                else:
                    stored[same] = _store(group, key.replace("/", "|"), value)


def _store(group: h5py.Group, key: str, value: np.ndarray) -> h5py.Dataset:
    packed = {"chunks": value.shape, "compression": 9, "shuffle": True}
    return group.create_dataset(key, data=value, **packed if value.nbytes > 1000 else {})


if __name__ == "__main__":
    main()
