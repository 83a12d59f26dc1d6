"""Writes the files that every later version must read, for ``test_compat.py``.

Run once with version 0.1-dev-1, before the renaming of the package. Never regenerate the files of
an existing version: they show what that version wrote. For a later version, change ``VERSION`` and
this script, and add its folder beside the others.

    python tests/compat/make_files.py
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

VERSION = "0.1-dev-1"
FILES = Path(__file__).parent / "files" / VERSION
WORK = Path("/data/cohort")
"""A neutral place: some files hold the absolute paths of slides and bags."""

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import numpy as np  # noqa: E402
import torch  # noqa: E402
import yaml  # noqa: E402
from arithmetic import describe_arithmetic, hash_tensors  # noqa: E402
from PIL import Image  # noqa: E402
from PIL.PngImagePlugin import PngInfo  # noqa: E402
from slide_maker import write_slide  # noqa: E402
from small_models import as_if_trained  # noqa: E402
from tiny_encoder import PX, write_encoder  # noqa: E402

from sacmil import (  # noqa: E402
    Bag,
    EncoderId,
    create_model,
    list_models,
    load_model,
    predict,
    read_bag,
    save_model,
    write_bag,
)

DIM = 8
CLASSES = ("high", "low")
INSTANCES = 12
SLIDES = 8
SLIDE = "tissue"
PRINTING = "--draws 100 --format csv"
EXPORTED = ("exported/model", "exported/run")
BAGS = f"0.5mpp_{PX}px/features_onnx-encoder.onnx"
"""Where extraction puts bags."""

SMALL: dict[str, dict[str, Any]] = {
    "abmil": {"hidden": 8, "attention_dim": 4},
    "abmil_gated": {"hidden": 8, "attention_dim": 4},
    "clam_mb": {"hidden": 8, "attention_dim": 4, "k_sample": 2},
    "clam_sb": {"hidden": 8, "attention_dim": 4, "k_sample": 2},
    "dsmil": {"query_dim": 4},
    "dtfd": {"dim": 2},
    "hipt": {"dim": 4, "depth": 1, "heads": 2, "global_heads": 2, "region": 2},
    "ibmil": {"base": "abmil", "confounders": 2},
    "longnet": {"dim": 4, "depth": 1, "heads": 2, "segments": [4, 16], "dilations": [1, 2]},
    "mambamil": {"dim": 4, "depth": 1, "state": 2},
    "mammil": {"dim": 4, "state": 2, "head_dim": 4, "neighbours": 3},
    "max_pool": {"hidden": 8},
    "mean_pool": {"hidden": 8},
    "norma": {"dim": 8, "heads": 2, "segment": 8, "memory": 2},
    "r2t": {"dim": 4, "heads": 2, "crmsa_heads": 2, "epeg_k": 3, "regions": 2},
    "sac_mil": {"dim": 8, "k": 4, "depth": 2, "centres": "peel"},
    "sac_mil_local": {"dim": 4, "k": 4, "centres": "kd"},
    "sac_mil_twice": {"dim": 4, "k": 4, "centres": "fps_free"},
    "transmil": {"dim": 4, "heads": 2, "landmarks": 4},
}

_TRAINING = {"lr": 0.01, "epochs": 4}
_LOOKAHEAD = {"optimiser": "radam", "lookahead": {"steps": 2, "alpha": 0.5}}
_VALIDATED = {"optimiser": "adamw", "monitor": "val_loss"}


def make_config(model: str, **training: Any) -> dict[str, Any]:
    """A configuration with the spellings of this version."""
    options = SMALL[model]
    return {"model": model, "options": options, "recipe": "paper", "training": training}


CONFIGS = {
    "run.yaml": {
        "abmil": make_config("abmil", **_TRAINING, **_VALIDATED),
        "sac_mil": make_config("sac_mil", **_TRAINING, optimiser="adamw", weight_decay=0.1),
    },
    "ibmil.yaml": {"ibmil": make_config("ibmil", **_TRAINING, monitor="val_loss")},
    "twice.yaml": {"sac_mil_twice": make_config("sac_mil_twice", **_TRAINING, **_LOOKAHEAD)},
    "config.yaml": make_config("sac_mil_twice", **_TRAINING, optimiser="radam"),
}

STOP = """
import os, signal
from sacmil.training import loop
remember, epochs = loop._Run._remember, []
def remember_and_stop(self, line, trainer):
    remember(self, line, trainer)
    self.checkpoint.finish()
    epochs.append(line)
    if len(epochs) == 6:
        os.kill(os.getpid(), signal.SIGKILL)
loop._Run._remember = remember_and_stop
"""
"""Kills the command after its sixth epoch."""

WITHOUT_TRACES = """
import onnx
from sacmil.deploy import export
write_graph = export._write_graph
def write_without_traces(model, file):
    names = write_graph(model, file)
    graph = onnx.load(file)
    for part in (graph.graph, *graph.graph.node, *graph.graph.value_info):
        del part.metadata_props[:]
    file.write_bytes(graph.SerializeToString())
    return names
export._write_graph = write_without_traces
"""
"""torch notes where each node comes from: paths of this machine, and nine tenths of the file."""


def main() -> None:
    """Write every file in a neutral place, then move all of them here."""
    if FILES.exists():
        sys.exit(f"{FILES}: exists; the files of a version are never written again")
    torch.set_num_threads(1)
    WORK.mkdir(parents=True)
    os.chdir(WORK)
    make_slide_and_encoder()
    make_bags()
    make_models()
    make_runs()
    make_results()
    write_expected()
    shrink_pictures()
    shutil.rmtree("scratch")
    shutil.copytree(WORK, FILES)
    shutil.rmtree(WORK)


def run(line: str, *, before: str = "", code: int = 0) -> str:
    """Run ``sacmil LINE`` in a process of its own, after some Python; its output."""
    script = f"{before}\nimport torch\ntorch.set_num_threads(1)\nfrom sacmil.cli.main import main"
    words = [sys.executable, "-c", script + "\nmain()", *line.split()]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != code:
        sys.exit(f"sacmil {line}: ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def write_json(name: str, values: dict[str, Any]) -> None:
    """An entry per line; every number exact."""
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in values.items()]
    Path(name).write_text("{\n" + ",\n".join(lines) + "\n}\n")


# Slides, bags and models -----------------------------------------------------------------------


def make_slide_and_encoder() -> None:
    """A tiny slide, its encoder, and all that extraction writes."""
    Path("slides").mkdir()
    write_slide(
        Path(f"slides/{SLIDE}.tif"),
        make_pixels(),
        downsamples=(1, 2),
        tile=64,
        compression="deflate",
    )
    write_encoder(Path("encoder.onnx"), width=DIM)
    words = f"--encoder onnx:encoder.onnx --patch-size {PX} --tissue detect"
    run(f"extract slides --out extraction {words}")


def make_pixels() -> Any:
    """A pink disc with a purple core: flat colours, for small files."""
    y, x = np.mgrid[:192, :256]
    far = np.hypot(x - 128, y - 96)[..., None]
    core, rim, glass = [120, 70, 150], [228, 150, 190], [243, 242, 244]
    return np.where(far < 40, core, np.where(far < 85, rim, glass)).astype(np.uint8)


def make_bags() -> None:
    """The cohort, its table and folds, and one bag of every other kind."""
    random = np.random.default_rng(0)
    encoder = read_bag(f"extraction/{BAGS}/{SLIDE}.h5").encoder
    rows = [("case_id", "slide_id", "label")]
    for number in range(SLIDES):
        name, label = f"slide-{number}", number % 2
        labels = np.where(random.random(INSTANCES) < 0.5, label, 0)
        features = random.standard_normal((INSTANCES, DIM)) + labels[:, None]
        facts = {"mpp": 0.5, "labels": labels, "encoder": encoder, "tile_px": PX}
        coords = make_coords(random)
        bag = Bag(name, features.astype(np.float32), coords, PX, **facts)
        write_bag(f"bags/{name}.h5", bag)
        rows.append((f"patient-{number}", f"{name}.tif", CLASSES[label]))
    with Path("table.csv").open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
    make_other_bags(random)
    run("split table.csv --folds 2 --validation 0.3 --out splits")


def make_coords(random: np.random.Generator) -> Any:
    """Places on a grid."""
    return np.stack(np.divmod(random.permutation(25)[:INSTANCES], 5), axis=1) * PX


def make_other_bags(random: np.random.Generator) -> None:
    """One with every optional fact; one in half precision between pixels, without a scale."""
    features, coords = random.standard_normal((INSTANCES, DIM)), make_coords(random)
    every_fact = {
        "mpp": 0.25,
        "labels": np.arange(INSTANCES) % 3 - 1,
        "slide_size": (640, 480),
        "bounds_origin": (3, 5),
        "stride": PX // 2,
        "tile_px": 2 * PX,
        "encoder": EncoderId("lite0", "00ff00ff00ff00ff"),
        "provenance": {"reader": "openslide", "tissue_mode": "auto", "nested": {"a": [1, 2.5]}},
    }
    single = features.astype(np.float32)
    bags = {
        "every-fact": Bag("every-fact", single, coords, PX, **every_fact),
        "no-scale": Bag("no-scale", features.astype(np.float16), coords + 0.25, PX + 0.5),
    }
    for name, bag in bags.items():
        write_bag(f"other-bags/{name}.h5", bag)


def make_models() -> None:
    """A folder of every registered model."""
    for name in list_models():
        torch.manual_seed(0)
        model = as_if_trained(create_model(name, in_dim=DIM, num_classes=2, **SMALL[name]))
        save_model(f"models/{name}", model, classes=CLASSES, notes={"origin": "random weights"})


# Runs, exports and results ---------------------------------------------------------------------


def make_runs() -> None:
    """A finished run, a killed one and what it comes to, one of ``train``, and two exports."""
    for name, values in CONFIGS.items():
        path = Path(name if name == "config.yaml" else f"scratch/{name}")
        path.parent.mkdir(exist_ok=True)
        path.write_text(yaml.safe_dump(values, sort_keys=False))
    given = "table.csv --bags bags --splits splits"
    run(f"crossval {given} --out run --config scratch/run.yaml")
    for name in ("ibmil", "twice"):
        line = f"crossval {given} --out interrupted --config scratch/{name}.yaml"
        run(line, before=STOP, code=-signal.SIGKILL)
    shutil.copytree("interrupted", "scratch/resumed")
    run(f"crossval {given} --out scratch/resumed --config interrupted/config.yaml")
    shutil.copy("scratch/resumed/predictions.csv", "resumed.csv")
    write_json("resumed.json", hash_weights(Path("scratch/resumed")))
    run(f"train {given} --out trained --config config.yaml --device cpu")
    run("export models/sac_mil_twice --out exported/model", before=WITHOUT_TRACES)
    run("export run/abmil --out exported/run", before=WITHOUT_TRACES)


def hash_weights(folder: Path) -> dict[str, str]:
    """SHA-256 of the tensors of each part of a run."""
    parts = sorted(file.parent for file in folder.glob("**/model.safetensors"))
    return {str(part.relative_to(folder)): hash_tensors(load_model(part)) for part in parts}


def make_results() -> None:
    """A folder for the viewer, with pictures, and an evaluation of models on a cohort."""
    model = "--model run/abmil --device cpu"
    run(f"predict extraction/{BAGS} {model} --slides slides --out results")
    run("evaluate run/sac_mil --table table.csv --bags bags --out scratch/evaluation")
    Path("evaluation").mkdir()
    shutil.copy("scratch/evaluation/predictions.csv", "evaluation")


def shrink_pictures() -> None:
    """Few pixels and colours, for small files; the text in a picture stays, for it is read."""
    for file in WORK.rglob("*.png"):
        with Image.open(file) as picture:
            text = PngInfo()
            for name, value in picture.info.items():
                if isinstance(value, str):
                    text.add_text(name, value)
            picture.thumbnail((160, 160))
            picture.convert("RGB").quantize(8).save(file, pnginfo=text, optimize=True)


# What later versions must give -----------------------------------------------------------------


def write_expected() -> None:
    """What models, commands and training gave, and what computed it."""
    bag = read_bag("bags/slide-0.h5")
    loaded = {name: load_model(f"models/{name}") for name in list_models()}
    made = {name: predict(model, bag) for name, model in loaded.items()}
    write_json("models.json", {name: make_lists(value) for name, value in made.items()})
    write_json("state_dicts.json", {name: read_sizes(model) for name, model in loaded.items()})
    printed = ("evaluate run", "evaluate evaluation", "evaluate trained", "compare run")
    write_json("printed.json", {line: run(f"{line} {PRINTING}") for line in printed})
    models = ("run/abmil", "run/sac_mil", *EXPORTED)
    write_json("probabilities.json", {name: read_probabilities(name) for name in models})
    write_json("computed_by.json", describe_arithmetic())


def make_lists(prediction: Any) -> dict[str, Any]:
    """The arrays of a prediction, as JSON holds them."""
    arrays = {name: getattr(prediction, name) for name in ("probabilities", "scores")}
    arrays["class_scores"] = prediction.class_scores
    return {
        name: None if values is None else np.float64(values).tolist()
        for name, values in arrays.items()
    }


def read_probabilities(model: str) -> dict[str, list[float]]:
    """What ``sacmil predict`` gives for each slide of the cohort."""
    out = Path("scratch/predicted") / model
    run(f"predict bags --model {model} --out {out} --no-heatmaps --device cpu")
    with (out / "predictions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {row["slide_id"]: [float(row[f"p_{name}"]) for name in CLASSES] for row in rows}


def read_sizes(model: Any) -> dict[str, list[int]]:
    """The tensors of a model, by name."""
    return {key: list(value.shape) for key, value in model.state_dict().items()}


if __name__ == "__main__":
    main()
