"""What is damaged: valid files of every kind that sacmil reads, and the commands that read them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
from mutations import (
    Mutation,
    change_hdf5,
    change_json,
    change_numpy,
    change_picture,
    change_safetensors,
    change_table,
    change_torch,
    change_workbook,
    change_yaml,
)

SLIDE = "slide-0-0"
PREDICT = "predict {d}/bags/slide-0-0.h5 --no-heatmaps --device cpu --out {d}/out --model {d}/"
TRAIN = "train {d}/%s --bags {d}/bags --out {d}/out --model mean_pool -o epochs=1 --folds 2"
CONVERT = "convert --workers 1 --mpp 0.25 --patch-size 512 --out {d}/out {d}/"
CROSSVAL = (
    "crossval {d}/labels.csv --bags {d}/bags --out {d}/run --models mean_pool,max_pool -o epochs=1"
)
EXTRACT = "extract {d}/slides --mpp none --patch-size 32 --workers 1 --out {d}/out --encoder "
ENCODER = "onnx:{d}/encoder.onnx"
VIEW = "view {d}/results"
"""Not the command but what its page asks for; see trial.py."""
READ = "read {d}/"
"""sacmil.read_bag; as convert, without a process that takes seconds to import torch."""
RUN = "run/mean_pool/seed_0/fold_0"
RESUME = f"{CROSSVAL} --folds 2"


class Kind(NamedTuple):
    """One row of the table: files that are damaged alike, and what reads them."""

    files: tuple[str, ...]
    commands: tuple[str, ...]
    changes: tuple[Mutation, ...] = ()
    """By what the file says; every kind is also damaged by its bytes."""
    needs: tuple[str, ...] = ()
    """Further folders and files of the material that the commands read."""
    is_protected: bool = False
    """Whether a checksum covers it, so that no damage may change a prediction unnoticed."""


KINDS: dict[str, Kind] = {
    "native bag": Kind(
        (f"bags/{SLIDE}.h5",),
        (
            f"info {{d}}/bags/{SLIDE}.h5",
            *[PREDICT + "model"] * 3,
            "convert {d}/bags --workers 1 --out {d}/out",
            f"heatmap {{d}}/bags/{SLIDE}.h5 --model {{d}}/model --out {{d}}/out",
            TRAIN % "labels.csv",
            "evaluate {d}/model --table {d}/labels.csv --bags {d}/bags --draws 10",
        ),
        (change_hdf5,),
        ("bags", "model", "labels.csv"),
        is_protected=True,
    ),
    "TRIDENT features": Kind(
        ("trident/features_uni_v1/slide.h5",),
        (CONVERT + "trident", "info {d}/trident/features_uni_v1/slide.h5"),
        (change_hdf5,),
    ),
    "CLAM features": Kind(
        ("clam/h5_files/slide.h5", "patches/slide.h5"),
        (CONVERT + "clam/h5_files --coords {d}/patches",),
        (change_hdf5,),
        ("clam/h5_files", "patches"),
    ),
    "CLAM tensors": Kind(
        ("clam/pt_files/other.pt",),
        (READ + "clam/pt_files/other.pt",),
        (change_torch,),
        ("patches",),
    ),
    "STAMP features": Kind(
        ("stamp/slide.h5",), (CONVERT + "stamp", "info {d}/stamp/slide.h5"), (change_hdf5,)
    ),
    "torchmil arrays": Kind(
        ("torchmil/features/slide.npy", "torchmil/coords/slide.npy"),
        (CONVERT + "torchmil",),
        (change_numpy,),
        ("torchmil",),
    ),
    "slideflow tensors": Kind(
        ("slideflow/slide.pt",), (READ + "slideflow/slide.pt",), (change_torch,), ("slideflow",)
    ),
    "slideflow index": Kind(
        ("slideflow/slide.index.npz",),
        (READ + "slideflow/slide.pt",),
        (change_numpy,),
        ("slideflow",),
    ),
    "label table, CSV": Kind(
        ("labels.csv",),
        ("split {d}/labels.csv --folds 2 --out {d}/out",) * 4 + (TRAIN % "labels.csv",),
        (change_table,),
        ("bags",),
    ),
    "label table, TSV": Kind(
        ("labels.tsv",), ("split {d}/labels.tsv --folds 2 --out {d}/out",), (change_table,)
    ),
    "label table, Excel": Kind(
        ("labels.xlsx",), ("split {d}/labels.xlsx --folds 2 --out {d}/out",), (change_workbook,)
    ),
    "split files": Kind(
        ("run/splits/splits_0.csv",),
        (
            *["split {d}/labels.csv --check {d}/run/splits --out {d}/out"] * 3,
            TRAIN.removesuffix(" --folds 2") % "labels.csv" + " --splits {d}/run/splits",
            RESUME,
        ),
        (change_table,),
        ("labels.csv", "run", "bags"),
    ),
    "configuration": Kind(
        ("config.yaml",),
        # one epoch, for an empty configuration trains as long as the recipe says
        (
            "train {d}/labels.csv --bags {d}/bags --out {d}/out --config {d}/config.yaml "
            "--folds 2 -o epochs=1 -o min_steps=0",
        ),
        (change_yaml,),
        ("labels.csv", "bags"),
    ),
    "run: config.yaml": Kind(
        ("run/config.yaml", f"{RUN}/config.yaml"),
        (RESUME, "evaluate {d}/run --draws 10", PREDICT + "run/mean_pool"),
        (change_yaml,),
        ("labels.csv", "bags", "run"),
    ),
    "run: tables": Kind(
        ("run/predictions.csv", f"{RUN}/predictions.csv", f"{RUN}/metrics.csv", "run/bags.csv"),
        (
            *["evaluate {d}/run --draws 10", "compare {d}/run --draws 10"] * 2,
            RESUME,
        ),
        (change_table,),
        ("labels.csv", "bags", "run"),
    ),
    "run: JSON": Kind(
        ("run/splits/splits.json", "run/provenance.json"),
        (RESUME, "evaluate {d}/run --draws 10"),
        (change_json,),
        ("labels.csv", "bags", "run"),
    ),
    "run: cards": Kind(
        (f"{RUN}/card.json",),
        (PREDICT + "run/mean_pool", RESUME),
        (change_json,),
        ("labels.csv", "bags", "run"),
        is_protected=True,
    ),
    "run: weights": Kind(
        (f"{RUN}/model.safetensors",),
        (PREDICT + "run/mean_pool", RESUME),
        (change_safetensors,),
        ("labels.csv", "bags", "run"),
        is_protected=True,
    ),
    "model: card": Kind(
        ("model/card.json",),
        (*[PREDICT + "model"] * 4, "info {d}/model", "export {d}/model --out {d}/out"),
        (change_json,),
        ("model", "bags"),
        is_protected=True,
    ),
    "model: weights": Kind(
        ("model/model.safetensors",),
        (PREDICT + "model",),
        (change_safetensors,),
        ("model", "bags"),
        is_protected=True,
    ),
    "exported: card": Kind(
        ("exported/card.json",),
        (PREDICT + "exported",),
        (change_json,),
        ("exported", "bags"),
        is_protected=True,
    ),
    "exported: graph": Kind(
        ("exported/model.onnx",),
        (PREDICT + "exported",),
        (),
        ("exported", "bags"),
        is_protected=True,
    ),
    "earlier predictions": Kind(
        (f"out/answers/{SLIDE}.json", "out/predictions.json"),
        (PREDICT + "model",),
        (change_json,),
        ("model", "bags", "out"),
    ),
    "viewer: results.json": Kind(("results/results.json",), (VIEW,), (change_json,), ("results",)),
    "viewer: scores": Kind(
        ("results/scores/model/slide-0-0.npz",), (VIEW,), (change_numpy,), ("results",)
    ),
    "viewer: outlines": Kind(("results/truth.geojson",), (VIEW,), (change_json,), ("results",)),
    "viewer: pictures": Kind(
        ("results/slide-0-0.png", "results/thumbnail.png"), (VIEW,), (change_picture,), ("results",)
    ),
    "GeoJSON outlines": Kind(
        (f"truth/{SLIDE}.geojson",),
        (
            f"heatmap {{d}}/bags/{SLIDE}.h5 --model {{d}}/model --out {{d}}/out --truth "
            f"{{d}}/truth/{SLIDE}.geojson",
        ),
        (change_json,),
        ("model", "bags"),
    ),
    "tissue outlines": Kind(
        ("tissue/tissue/photo.geojson",),
        (EXTRACT.replace("{d}/out", "{d}/tissue") + ENCODER,),
        (change_json,),
        ("tissue", "slides", "encoder.onnx"),
    ),
    "PNG and JPEG": Kind(
        ("slides/photo.png", "slides/scan.jpg"),
        (EXTRACT + ENCODER,),
        (change_picture,),
        ("encoder.onnx",),
    ),
    "TIFF slides": Kind(
        ("slides/pyramid.tif",), (EXTRACT + ENCODER,), (change_picture,), ("encoder.onnx",)
    ),
    "encoder graph": Kind(("encoder.onnx",), (EXTRACT + ENCODER,), (), ("slides/photo.png",)),
    "checkpoints": Kind(
        ("checkpoint.pt",),
        ("convert {d}/checkpoint.pt --model clam_sb --out {d}/out",),
        (change_torch,),
    ),
}


# Material --------------------------------------------------------------------------------------


def make_material(folder: Path, run: Callable[..., Any], *, full: bool = True) -> Path:
    """Write one valid file of every kind.

    Args:
        folder: where to.
        run: runs a command of sacmil.
        full: also what takes seconds: a run, an exported model, outlines of tissue.
    """
    from small_cohort import write_material

    folder.mkdir(parents=True)
    (folder / "bags").mkdir()
    cohort = write_material(folder / "bags", patients=8).cohort
    rows = [["slide", "patient", "label"]]
    rows += [[s.slide_id, s.patient_id, cohort.classes[s.label]] for s in cohort.slides]
    _write_tables(folder, rows)
    (folder / "config.yaml").write_text(
        "model: mean_pool\noptions: {hidden: 8}\nrecipe: standard\n"
        "training: {epochs: 1, lr: 2e-4}\nseed: 0\nprecision: float32\n"
    )
    model = folder / "model"
    _write_model(model, cohort.classes)
    run((PREDICT + "model").format(d=folder))
    _write_peers(folder)
    _write_pictures(folder)
    _write_results(folder)
    if full:
        outlines = EXTRACT.replace("{d}/out", "{d}/tissue") + ENCODER + " --until tissue"
        for line in (RESUME, f"export {{d}}/{RUN} --out {{d}}/exported", outlines):
            run(line.format(d=folder))
    return folder


def _write_model(path: Path, classes: tuple[str, ...]) -> None:
    """A model that reads features and coordinates, so that damage to either changes predictions."""
    import torch
    from small_models import make_model

    from sacmil import save_model

    torch.manual_seed(0)
    save_model(path, make_model("sac_mil", in_dim=6, num_classes=2), classes=classes)


def _write_tables(folder: Path, rows: list[list[str]]) -> None:
    import openpyxl

    (folder / "labels.csv").write_text("".join(",".join(row) + "\n" for row in rows))
    (folder / "labels.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    book.save(folder / "labels.xlsx")


def _write_peers(folder: Path) -> None:
    """Features as other toolkits write them, and an official checkpoint."""
    import torch

    random = np.random.default_rng(0)
    coords = np.argwhere(np.ones((5, 6))) * 512
    features = random.standard_normal((30, 6)).astype(np.float32)
    scale = {"patch_size": 256, "patch_size_level0": 512, "overlap": 0}
    _write_hdf5(folder / "trident/features_uni_v1/slide.h5", features=features, coords=coords)
    with h5py.File(folder / "trident/features_uni_v1/slide.h5", "r+") as file:
        file["coords"].attrs.update(scale)
    _write_hdf5(folder / "clam/h5_files/slide.h5", features=features, coords=coords)
    for name in ("slide", "other"):
        _write_hdf5(folder / f"patches/{name}.h5", coords=coords)
        with h5py.File(folder / f"patches/{name}.h5", "r+") as file:
            file["coords"].attrs.update({"patch_size": 512, "patch_level": 0})
    stamp = {"stamp_version": "2.3.0", "extractor": "uni2", "unit": "um", "tile_size_um": 128.0}
    _write_hdf5(folder / "stamp/slide.h5", feats=features, coords=coords * 0.25)
    with h5py.File(folder / "stamp/slide.h5", "r+") as file:
        file.attrs.update(stamp)
    for name, values in (("features", features), ("coords", coords)):
        (folder / "torchmil" / name).mkdir(parents=True)
        np.save(folder / "torchmil" / name / "slide.npy", values)
    for path in ("clam/pt_files/other.pt", "slideflow/slide.pt"):
        (folder / path).parent.mkdir(exist_ok=True)
        torch.save(torch.from_numpy(features), folder / path)
    np.savez(folder / "slideflow/slide.index.npz", coords + 256)
    (folder / "slideflow/bags_config.json").write_text('{"tile_px": 256, "tile_um": 128}')
    torch.save(_clam_checkpoint(), folder / "checkpoint.pt")


def _clam_checkpoint() -> dict[str, Any]:
    """The parameters of an official CLAM with one branch, by its names."""
    import torch

    sizes = {
        "attention_net.0": (8, 6),
        "attention_net.3.attention_a.0": (4, 8),
        "attention_net.3.attention_b.0": (4, 8),
        "attention_net.3.attention_c": (1, 4),
        "classifiers": (2, 8),
        "instance_classifiers.0": (2, 8),
        "instance_classifiers.1": (2, 8),
    }
    return {
        f"{name}.{part}": torch.ones(shape if part == "weight" else shape[:1])
        for name, shape in sizes.items()
        for part in ("weight", "bias")
    }


def _write_hdf5(path: Path, **arrays: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for name, values in arrays.items():
            file[name] = values


def _write_pictures(folder: Path) -> None:
    from PIL import Image
    from slide_maker import tissue_pixels, write_slide
    from tiny_encoder import write_encoder

    (folder / "slides").mkdir()
    pixels = tissue_pixels(256, 192, seed=3)
    Image.fromarray(pixels).save(folder / "slides/photo.png")
    Image.fromarray(pixels).save(folder / "slides/scan.jpg")
    write_slide(folder / "slides/pyramid.tif", pixels, downsamples=(1, 2), tile=64)
    write_encoder(folder / "encoder.onnx")


def _write_results(folder: Path) -> None:
    """What the viewer reads: the predictions, with a slide, a thumbnail and outlines."""
    results = folder / "results"
    shutil.copytree(folder / "out", results)
    for name in (f"{SLIDE}.png", "thumbnail.png"):
        shutil.copy(folder / "slides/photo.png", results / name)
    ring = [[10, 10], [200, 10], [200, 150], [10, 10]]
    feature = {"type": "Feature", "geometry": {"type": "Polygon", "coordinates": [ring]}}
    outlines = json.dumps({"type": "FeatureCollection", "features": [feature]})
    (results / "truth.geojson").write_text(outlines)
    (folder / "truth").mkdir()
    (folder / f"truth/{SLIDE}.geojson").write_text(outlines)
    document = json.loads((results / "results.json").read_text())
    document["slides"][0] |= {
        "slide": f"{SLIDE}.png",
        "thumbnail": "thumbnail.png",
        "truth": "truth.geojson",
        "size": [256, 192],
    }
    (results / "results.json").write_text(json.dumps(document))
