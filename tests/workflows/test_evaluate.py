"""Models on another cohort; runs side by side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from predicted import predicted

from sacmil import create_model, load_model, predict, read_bag, save_model, write_bag
from sacmil.bag import EncoderId
from sacmil.card import anonymized_id
from sacmil.cohorts.cohort import Cohort, LabeledSlide
from sacmil.cohorts.dataset import Dataset
from sacmil.errors import CohortWarning, DeviceError, ModelFolderError, RunError
from sacmil.evaluation.localization import measure_localization
from sacmil.metrics.classification import METRICS, auc, average_precision
from sacmil.results import Predictions, read_predictions, write_predictions
from sacmil.workflows.evaluate import Evaluation, evaluate
from sacmil.workflows.runs import (
    make_distinct_names,
    read_run_settings,
    read_runs,
    reorder_classes,
)

CLASSES = ("normal", "tumour")


def evaluate_models(
    models: list[Path], cohort: Cohort, bags: dict[str, Path], **options: Any
) -> Evaluation:
    return evaluate(models, Dataset(cohort, bags, check_headers=False), **options)


@pytest.fixture
def bags(make_bag: Callable, tmp_path: Path) -> dict[str, Path]:
    """Six bags of sixteen features; half of the instances of the first two are labelled."""
    found = {}
    for number in range(6):
        bag = replace(make_bag(20 + number, seed=number), slide_id=f"s{number}")
        if number < 2:
            bag = replace(bag, labels=np.arange(len(bag)) % 2)
        found[bag.slide_id] = tmp_path / "bags" / f"s{number}.h5"
        write_bag(found[bag.slide_id], bag)
    return found


def cohort(classes: tuple[str, ...] = CLASSES, slides: int = 6) -> Cohort:
    rows = [LabeledSlide(f"s{i}", f"p{i // 2}", i // 2 % 2) for i in range(slides)]
    return Cohort(tuple(rows), classes)


@pytest.fixture
def make_model(tmp_path: Path) -> Callable[..., Path]:
    """Writes a small model with weights of its own."""
    made = []

    def make(
        where: str = "abmil",
        classes: tuple[str, ...] | None = CLASSES,
        notes: dict[str, Any] | None = None,
        model: str = "abmil",
        **options: int,
    ) -> Path:
        import torch

        torch.manual_seed(len(made))
        made.append(where)
        built = create_model(model, **{"in_dim": 16, "num_classes": 2, **options})
        save_model(tmp_path / where, built, classes=classes, notes=notes)
        return tmp_path / where

    return make


def test_answers_are_those_of_predict(make_model: Callable, bags: dict[str, Path]) -> None:
    path = make_model()
    found = evaluate_models([path], cohort(), bags).predictions
    expected = [predict(load_model(path), read_bag(bag)).probabilities for bag in bags.values()]
    np.testing.assert_array_equal(found.probabilities, expected)
    assert found.slide_id.tolist() == list(bags)
    assert found.patient_id.tolist() == ["p0", "p0", "p1", "p1", "p2", "p2"]
    assert found.label.tolist() == [0, 0, 1, 1, 0, 0]
    assert set(found.model.tolist()) == {"abmil"}
    assert set(found.split.tolist()) == {"test"}


def test_a_run_is_the_mean_over_its_parts(make_model: Callable, bags: dict[str, Path]) -> None:
    parts = [make_model(f"run/abmil/seed_0/fold_{fold}") for fold in range(3)]
    whole = evaluate_models([parts[0].parents[2]], cohort(), bags)
    single = [evaluate_models([part], cohort(), bags) for part in parts]
    mean = np.mean([one.predictions.probabilities for one in single], axis=0)
    np.testing.assert_allclose(whole.predictions.probabilities, mean, rtol=1e-12)
    assert [row.slide_id for row in whole.localization] == [
        row.slide_id for row in single[0].localization
    ]


def test_classes_are_matched_by_name(make_model: Callable, bags: dict[str, Path]) -> None:
    path = make_model()
    there = evaluate_models([path], cohort(), bags).predictions
    turned = evaluate_models([path], cohort(("tumour", "normal")), bags).predictions
    np.testing.assert_array_equal(turned.probabilities, there.probabilities[:, ::-1])


@pytest.mark.parametrize("classes", [("normal", "tumor"), ("normal", "tumour", "necrosis")])
def test_other_classes_are_refused_with_both_lists(
    make_model: Callable, bags: dict[str, Path], classes: tuple[str, ...]
) -> None:
    with pytest.raises(RunError) as refused:
        evaluate_models([make_model()], cohort(classes), bags)
    assert ", ".join(CLASSES) in str(refused.value)
    assert ", ".join(classes) in str(refused.value)


def test_a_cohort_of_one_class_is_answered_as_in_a_cohort_of_both(
    make_model: Callable, bags: dict[str, Path]
) -> None:
    path = make_model()
    both = evaluate_models([path], cohort(), bags).predictions
    single = Cohort(tuple(LabeledSlide(f"s{i}", "p1", 0) for i in (2, 3)), ("tumour",))
    with pytest.warns(CohortWarning, match="no slide of normal"):
        found = evaluate_models([path], single, bags)
    np.testing.assert_array_equal(found.predictions.probabilities, both.probabilities[2:4])
    assert found.predictions.classes == CLASSES
    assert found.predictions.label.tolist() == [1, 1]


def test_of_three_classes_one_may_be_missing(make_model: Callable, bags: dict[str, Path]) -> None:
    path = make_model(classes=("necrosis", *CLASSES), num_classes=3)
    with pytest.warns(CohortWarning, match="no slide of necrosis; AUC is of the other classes"):
        found = evaluate_models([path], cohort(), bags).predictions
    assert found.label.tolist() == [1, 1, 2, 2, 1, 1]
    assert np.isfinite(METRICS["auc"](found.label, found.probabilities))


@pytest.mark.parametrize(("names", "outputs"), [(("tumour",), 1), (None, 2)])
def test_a_single_class_is_rejected_if_nothing_names_the_other(
    make_model: Callable, bags: dict[str, Path], names: tuple[str, ...] | None, outputs: int
) -> None:
    single = Cohort((LabeledSlide("s2", "p1", 0),), ("tumour",))
    with pytest.raises(RunError, match="name both by `classes`"):
        evaluate_models([make_model(classes=names, num_classes=outputs)], single, bags)


@pytest.mark.parametrize("names", [("tumour",), CLASSES])
@pytest.mark.parametrize("order", [CLASSES, CLASSES[::-1]])
def test_a_single_output_speaks_of_both_classes(
    make_model: Callable, bags: dict[str, Path], names: tuple[str, ...], order: tuple[str, ...]
) -> None:
    path = make_model(classes=names, num_classes=1)
    found = evaluate_models([path], cohort(order), bags).predictions
    np.testing.assert_allclose(found.probabilities.sum(axis=1), 1)
    from sacmil import read_bag

    tumour = [predict(load_model(path), read_bag(bag)).probabilities[1] for bag in bags.values()]
    np.testing.assert_allclose(found.probabilities[:, order.index("tumour")], tumour)


def test_unnamed_classes_are_taken_in_order_with_a_warning(
    make_model: Callable, bags: dict[str, Path]
) -> None:
    with pytest.warns(CohortWarning, match="does not name its classes.*normal, tumour"):
        evaluate_models([make_model(classes=None)], cohort(), bags)
    with pytest.raises(RunError, match="has 2 classes, which its card does not name"):
        evaluate_models([make_model("other", None)], cohort(("a", "b", "c")), bags)


def test_one_bad_bag_does_not_stop_the_others(make_model: Callable, bags: dict[str, Path]) -> None:
    bags["s1"].write_bytes(b"not a bag")
    dataset = Dataset(cohort(), bags, check_headers=False)
    bags["s2"].unlink()  # after it was found
    found = evaluate([make_model()], dataset)
    assert found.predictions.slide_id.tolist() == ["s0", "s3", "s4", "s5"]
    assert [failure.slide_id for failure in found.failures] == ["s1", "s2"]
    assert all(str(bags[failure.slide_id]) in failure.reason for failure in found.failures)


def test_bags_of_another_encoder_are_reported_slide_by_slide(
    make_model: Callable, bags: dict[str, Path]
) -> None:
    fits, wide = make_model("fits"), make_model("wide", in_dim=32)
    found = evaluate_models([fits, wide], cohort(), bags)
    assert set(found.predictions.model.tolist()) == {"fits/abmil"}
    assert len(found.failures) == 6
    for number, failure in enumerate(found.failures):
        assert failure.reason.startswith(f"wide/abmil: s{number}: ")
        assert "16" in failure.reason
        assert "32" in failure.reason


def test_localisation_is_of_the_slides_whose_instances_are_labelled(
    make_model: Callable, bags: dict[str, Path]
) -> None:
    path = make_model()
    found = evaluate_models([path], cohort(), bags).localization
    assert [(row.slide_id, row.patient_id, row.model) for row in found] == [
        ("s0", "p0", "abmil"),
        ("s1", "p0", "abmil"),
    ]
    for row in found:
        bag = read_bag(bags[row.slide_id])
        scores = predict(load_model(path), bag).scores
        assert (row.instances, row.positives) == (len(bag), int(bag.labels.sum()))
        assert row.auc == measure_localization({"s": scores}, {"s": bag.labels}).auc


def test_scores_of_the_true_class_localise_whatever_its_place(
    make_model: Callable, bags: dict[str, Path]
) -> None:
    path = make_model("pool", model="mean_pool")
    turned = Cohort(
        tuple(slide._replace(label=1 - slide.label) for slide in cohort().slides), CLASSES[::-1]
    )
    of_class_0 = evaluate_models([path], cohort(), bags).localization
    assert evaluate_models([path], turned, bags).localization == of_class_0
    bag = read_bag(bags["s0"])
    by_class = predict(load_model(path), bag).class_scores
    assert of_class_0[0].auc == auc(bag.labels, by_class[:, 0])
    assert of_class_0[0].average_precision != average_precision(bag.labels, by_class[:, 1])


def test_without_instance_labels_nothing_is_localised(
    make_model: Callable, bags: dict[str, Path]
) -> None:
    rest = Cohort(cohort().slides[2:], CLASSES)
    assert evaluate_models([make_model()], rest, bags).localization == []


def test_slides_a_model_was_trained_on_are_reported_wherever_it_is(
    make_model: Callable, bags: dict[str, Path]
) -> None:
    table = cohort()
    slide, other = table.slides[3], table.slides[5]
    seen = [anonymized_id("slide", slide.slide_id), anonymized_id("patient", other.patient_id)]
    path = make_model(notes={"training": {"seen": seen}})
    with pytest.warns(CohortWarning, match=f"of the 6 slides .* such as {slide.slide_id}"):
        found = evaluate_models([path], table, bags)
    assert len(found.warnings) == 1
    assert evaluate_models([path], cohort(slides=3), bags).warnings == []


def test_splits_of_others_beside_a_model_are_no_reason_for_doubt(
    make_model: Callable, bags: dict[str, Path], tmp_path: Path
) -> None:
    path = make_model("project/models/abmil")
    (tmp_path / "project" / "splits").mkdir()
    (tmp_path / "project" / "splits" / "splits_0.csv").write_text(",train,val,test\n0,s3,x,y\n")
    assert evaluate_models([path], cohort(), bags).warnings == []


def test_a_damaged_model_is_reported_before_any_bag_is_read(
    make_model: Callable, bags: dict[str, Path]
) -> None:
    path = make_model()
    (path / "model.safetensors").write_bytes(b"")
    for bag in bags.values():
        bag.write_bytes(b"not a bag")
    with pytest.raises(ModelFolderError):
        evaluate_models([path], cohort(), bags)


def test_a_device_that_is_not_there_is_reported(
    make_model: Callable, bags: dict[str, Path]
) -> None:
    with pytest.raises(DeviceError, match="'cuda:77' cannot be used"):
        evaluate_models([make_model()], cohort(), bags, device="cuda:77")
    with pytest.raises(DeviceError, match="'gpu' cannot be used"):
        evaluate_models([make_model("b")], cohort(), bags, device="gpu")


def test_progress_counts_slides(make_model: Callable, bags: dict[str, Path]) -> None:
    events = []
    evaluate_models([make_model()], cohort(), bags, on_progress=lambda *each: events.append(each))
    assert events == [("evaluating", done, 6) for done in range(1, 7)]


# --- runs side by side ---------------------------------------------------------------------------


def write(folder: Path, predictions: Predictions) -> Path:
    write_predictions(folder / "predictions.csv", predictions)
    return folder


def test_equal_names_get_the_runs_in_front(tmp_path: Path) -> None:
    one = write(tmp_path / "one", predicted(("abmil", "sac_mil")))
    two = write(tmp_path / "two", predicted(("sac_mil",)))
    names = set(read_runs([one, two])[0].model.tolist())
    assert names == {"abmil", "one/sac_mil", "two/sac_mil"}
    assert set(read_runs([one])[0].model.tolist()) == {"abmil", "sac_mil"}
    assert set(read_runs([one / "predictions.csv", two])[0].model.tolist()) == names


@pytest.mark.parametrize(
    ("found", "names"),
    [
        ([("a/run", "m"), ("b/run", "m")], ["a/run/m", "b/run/m"]),
        ([("one/m", "m"), ("two/m", "m")], ["one/m", "two/m"]),
        ([("a", "m"), ("b", "n")], ["m", "n"]),
        ([("x/a", "m"), ("y", "m"), ("z", "a/m")], ["x/a/m", "a/y/m", "a/m"]),
        ([], []),
    ],
)
def test_names_are_as_long_as_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: list, names: list[str]
) -> None:
    (tmp_path / "a").mkdir()
    monkeypatch.chdir(tmp_path / "a")
    assert make_distinct_names([(Path(path), name) for path, name in found]) == names


def test_a_run_given_twice_is_reported(tmp_path: Path) -> None:
    run = write(tmp_path / "run", predicted())
    with pytest.raises(RunError, match="given twice"):
        read_runs([run, run])


def test_classes_in_another_order_are_put_right(tmp_path: Path) -> None:
    there = predicted(("a",))
    back = reorder_classes(predicted(("b",)), ("tumour", "normal"))
    joined, _ = read_runs([write(tmp_path / "1", there), write(tmp_path / "2", back)])
    assert joined.classes == ("normal", "tumour")
    np.testing.assert_array_equal(joined.label[joined.model == "b"], there.label)
    np.testing.assert_array_equal(
        joined.probabilities[joined.model == "b"], predicted(("b",)).probabilities
    )


def test_three_classes_turned_and_turned_back_are_the_same() -> None:
    there = predicted(classes=("x", "y", "z"))
    turned = reorder_classes(there, ("z", "x", "y"))
    names = [turned.classes[label] for label in turned.label]
    assert names == [there.classes[label] for label in there.label]
    back = reorder_classes(turned, ("x", "y", "z"))
    np.testing.assert_array_equal(back.label, there.label)
    np.testing.assert_array_equal(back.probabilities, there.probabilities)


def test_runs_of_different_classes_are_refused(tmp_path: Path) -> None:
    one = write(tmp_path / "one", predicted())
    two = write(tmp_path / "two", predicted(classes=("x", "y")))
    with pytest.raises(RunError, match=r"normal, tumour; and x, y"):
        read_runs([one, two])


def test_settings_are_read_from_their_files(tmp_path: Path) -> None:
    run = write(tmp_path / "run", predicted())
    (run / "config.yaml").write_bytes(b"epochs: 3 # \xff")
    assert read_run_settings([run, tmp_path]) == {str(run / "config.yaml"): "epochs: 3 # �"}
    assert read_run_settings([run / "predictions.csv"]).keys() == {str(run / "config.yaml")}


def test_only_what_lies_with_a_model_says_how_it_was_made(tmp_path: Path) -> None:
    part = tmp_path / "run" / "abmil" / "seed_0" / "fold_0"
    part.mkdir(parents=True)
    (tmp_path / "config.yaml").write_text("of somebody else")
    (part / "config.yaml").write_text("epochs: 3")
    assert list(read_run_settings([part]).values()) == ["epochs: 3"]


def test_files_of_one_folder_are_distinguished_by_their_names(tmp_path: Path) -> None:
    header = "slide_id,patient_id,split,fold,seed,model,label,p_no,p_yes\n"
    for name in ("one", "two"):
        (tmp_path / f"{name}.csv").write_text(header + "s1,x,test,0,1,abmil,yes,0.25,0.75\n")
    found, _ = read_runs([tmp_path / "one.csv", tmp_path / "two.csv"])
    assert found.model.tolist() == ["one/abmil", "two/abmil"]


def test_compressed_files_of_one_folder_are_distinguished_by_their_names(tmp_path: Path) -> None:
    rows = [("s1", "x", "test", 0, 1, "abmil", 1)]
    table = Predictions.from_rows(["no", "yes"], rows, [[0.25, 0.75]])
    files = [tmp_path / "one.csv.gz", tmp_path / "two.csv.gz", tmp_path / "a/predictions.csv.gz"]
    for file in files:
        write_predictions(file, table)
    found, _ = read_runs(files)
    assert found.model.tolist() == ["one/abmil", "two/abmil", "a/abmil"]


def test_what_is_written_is_read_back(make_model: Callable, bags: dict[str, Path]) -> None:
    path = make_model()
    found = evaluate_models([path], cohort(), bags).predictions
    write_predictions(path.parent / "p.csv", found)
    np.testing.assert_array_equal(
        read_predictions(path.parent / "p.csv").probabilities, found.probabilities
    )


def test_bags_of_another_encoder_size_or_slide_are_failures_with_their_reasons(
    make_model: Callable, bags: dict[str, Path]
) -> None:
    facts = {"encoder": "uni_v1", "encoder_hash": "abc", "patch_um": 128.0}
    known = {"encoder": EncoderId("uni_v1", "abc"), "mpp": 0.5, "patch_size": 256.0}
    changes: list[dict[str, Any]] = [
        {"encoder": EncoderId("other")},
        {"encoder": EncoderId("uni_v1", "def")},
        {"mpp": 2.0},
        {"slide_id": "another"},
        {},
        {"encoder": None},
    ]
    for path, changed in zip(bags.values(), changes, strict=True):
        write_bag(path, replace(read_bag(path), **(known | changed)))
    found = evaluate_models([make_model(notes={"bags": facts})], cohort(), bags)
    assert found.predictions.slide_id.tolist() == ["s4", "s5"]
    reasons = [failure.reason for failure in found.failures]
    for reason, words in zip(
        reasons,
        ["its encoder is other", "has other weights (def)", "µm wide", "holds the slide 'another'"],
        strict=True,
    ):
        assert words in reason


def test_an_exported_model_is_evaluated_like_its_source(
    make_model: Callable, bags: dict[str, Path], tmp_path: Path
) -> None:
    from sacmil.deploy.export import export_model

    source = make_model()
    exported = export_model(source, tmp_path / "exported", sizes=[3])
    expected, found = (evaluate_models([path], cohort(), bags) for path in (source, exported))
    np.testing.assert_allclose(
        found.predictions.probabilities, expected.predictions.probabilities, atol=1e-5
    )
    assert [row[:5] for row in found.localization] == [row[:5] for row in expected.localization]
