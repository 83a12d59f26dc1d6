"""What a table is trained on: the user's copy of a dataset, or a synthetic cohort."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sacmil.bag import Bag, EncoderId
from sacmil.errors import CohortError, CohortWarning, ConfigError
from sacmil.formats import read_bag, write_bag
from sacmil.reproduce import _dataset
from sacmil.reproduce._dataset import STAND_IN_TASKS, load_datasets
from sacmil.reproduce._paper import TABLES
from sacmil.reproduce.experiments import DatasetPaths, ReproduceRequest, SyntheticSettings

SMALL = ReproduceRequest(synthetic=SyntheticSettings(slides=4, instances=(20, 30)), folds=2)
CAMELYON = [f"{kind}_{n:03d}" for kind in ("normal", "tumor", "test") for n in (1, 2, 3)]
LUNG = [f"TCGA-{n:02d}-000{n}-01Z-00-DX1.ABC" for n in range(1, 7)]


def bags(folder: Path, names: list[str], encoder: str | None, dim: int = 1024) -> Path:
    encoder_id = None if encoder is None else EncoderId(encoder, None)
    for name in names:
        features = np.ones((2, dim), dtype=np.float32)
        write_bag(
            folder / f"{name}.h5", Bag(name, features, [[0, 0], [512, 0]], 512, encoder=encoder_id)
        )
    return folder


def camelyon(folder: Path, encoder: str | None = "resnet50", dim: int = 1024) -> DatasetPaths:
    table = folder / "camelyon.csv"
    lines = [f"{name},{'Tumor' if 'tumor' in name else 'Normal'}" for name in CAMELYON]
    table.write_text("\n".join(["slide_id,label", *lines]))
    return DatasetPaths(table, bags(folder / "bags", CAMELYON, encoder, dim))


def test_without_data_each_dataset_has_a_stand_in_that_says_so(tmp_path) -> None:
    found = load_datasets(tmp_path, TABLES["positions"], SMALL)
    assert {one.dataset: one.name.split("-")[0] for one in found} == STAND_IN_TASKS
    for one in found:
        assert one.synthetic
        assert one.description.startswith("a synthetic cohort, not ")
        assert {path.stem for path in one.data.bags.values()} == {
            s.slide_id for s in one.data.cohort.slides
        }
        assert all(20 <= len(read_bag(path)) <= 30 for path in one.data.bags.values())


def test_a_stand_in_is_made_once(tmp_path, monkeypatch) -> None:
    (first,) = load_datasets(tmp_path, TABLES["correlations"], SMALL)
    monkeypatch.setattr(_dataset, "write_synthetic_cohort", None)
    assert load_datasets(tmp_path, TABLES["correlations"], SMALL) == [first]


def test_a_synthetic_cohort_that_was_interrupted_is_made_again(tmp_path, monkeypatch) -> None:
    real = _dataset.write_synthetic_cohort

    def interrupt(cohort, folder, *, on_progress):
        (folder / "bags").mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr(_dataset, "write_synthetic_cohort", interrupt)
    with pytest.raises(KeyboardInterrupt):
        load_datasets(tmp_path, TABLES["correlations"], SMALL)
    monkeypatch.setattr(_dataset, "write_synthetic_cohort", real)
    (whole,) = load_datasets(tmp_path, TABLES["correlations"], SMALL)
    assert all(path.is_file() for path in whole.data.bags.values())


@pytest.mark.parametrize(
    "other",
    [{"slides": 6}, {"seed": 1}, {"difficulty": "easy"}, {"task": "margin"}]
    + [{"instances": (20, 31)}],
    ids=str,
)
def test_another_stand_in_goes_to_another_folder(tmp_path, other) -> None:
    changed = replace(SMALL, synthetic=replace(SMALL.synthetic, **other))
    (one,) = load_datasets(tmp_path, TABLES["correlations"], SMALL)
    (two,) = load_datasets(tmp_path, TABLES["correlations"], changed)
    assert one.name != two.name


def test_only_the_requested_datasets_are_made(tmp_path) -> None:
    (one,) = load_datasets(tmp_path, TABLES["positions"], replace(SMALL, only=("tcga-brca",)))
    assert one.dataset == "tcga-brca"


def test_a_dataset_the_table_does_not_have_is_refused(tmp_path) -> None:
    with pytest.raises(ConfigError, match="expected at least one of camelyon16"):
        load_datasets(tmp_path, TABLES["correlations"], replace(SMALL, only=("tcga-brca",)))


def test_with_data_nothing_synthetic_is_mixed_in(tmp_path) -> None:
    request = replace(SMALL, data={"camelyon16": camelyon(tmp_path)})
    (one,) = load_datasets(tmp_path / "out", TABLES["positions"], request)
    assert (one.dataset, one.synthetic) == ("camelyon16", False)
    assert "camelyon.csv" in one.description
    assert not (tmp_path / "out").exists()


def test_the_official_test_slides_of_camelyon_are_in_no_fold(tmp_path) -> None:
    request = replace(SMALL, data={"camelyon16": camelyon(tmp_path)})
    (one,) = load_datasets(tmp_path, TABLES["correlations"], request)
    assert {slide.slide_id.split("_")[0] for slide in one.data.cohort.slides} == {"normal", "tumor"}


def test_tables_over_other_features_do_not_share_runs(tmp_path) -> None:
    request = replace(SMALL, data={"camelyon16": camelyon(tmp_path, encoder=None)})
    tables = ("table1", "correlations", "table2")
    names = [load_datasets(tmp_path, TABLES[table], request)[0].name for table in tables]
    assert names == ["camelyon16-resnet50", "camelyon16-resnet50", "camelyon16-uni_v1"]


def test_slides_of_tcga_belong_to_the_patient_of_their_barcode(tmp_path) -> None:
    table = tmp_path / "lung.csv"
    lines = [f"{name},{'LUAD' if n % 2 else 'LUSC'}" for n, name in enumerate(LUNG)]
    table.write_text("\n".join(["slide_id,label", *lines]))
    source = DatasetPaths(table, bags(tmp_path / "bags", LUNG, "uni_v1"))
    (one,) = load_datasets(tmp_path, TABLES["table2"], replace(SMALL, data={"tcga-lung": source}))
    assert {slide.patient_id for slide in one.data.cohort.slides} == {name[:12] for name in LUNG}


@pytest.mark.parametrize("encoder", ["resnet50", "resnet50_trunc", None])
def test_the_table_s_own_encoder_is_taken_without_a_word(tmp_path, encoder) -> None:
    request = replace(SMALL, data={"camelyon16": camelyon(tmp_path, encoder)})
    assert load_datasets(tmp_path, TABLES["correlations"], request)


@pytest.mark.parametrize(
    ("encoder", "dim", "features"),
    [
        ("uni_v1", 1024, "1024 features by uni_v1"),
        (None, 2048, "2048 features by an unnamed encoder"),
    ],
)
def test_features_of_another_encoder_are_reported(tmp_path, encoder, dim, features) -> None:
    request = replace(SMALL, data={"camelyon16": camelyon(tmp_path, encoder, dim)})
    with pytest.warns(CohortWarning, match=f"{features}.*with the encoder resnet50"):
        (one,) = load_datasets(tmp_path, TABLES["correlations"], request)
    assert features in one.description


def test_more_folds_than_patients_are_refused_before_a_bag_is_made(tmp_path) -> None:
    with pytest.raises(CohortError, match="fold"):
        load_datasets(tmp_path, TABLES["correlations"], replace(SMALL, folds=9))
    assert not any(tmp_path.iterdir())


def test_missing_bags_are_refused_before_anything_is_trained(tmp_path) -> None:
    source = camelyon(tmp_path)
    (source.bags / "normal_001.h5").unlink()
    (source.bags / "tumor_002.h5").unlink()
    with pytest.raises(CohortError) as refused:
        load_datasets(tmp_path, TABLES["correlations"], replace(SMALL, data={"camelyon16": source}))
    assert len(refused.value.problems) == 2
