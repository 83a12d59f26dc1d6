"""A prediction has the instances in the order of the bag and does not change the model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sacmil import Bag, create_model, embed, list_models, predict, write_bag
from sacmil.errors import FormatError, InputError, ModelError
from sacmil.models import MILModel, Output
from sacmil.models._registry import get_model_class
from sacmil.results import Prediction

DIM = 12

every_model = pytest.mark.parametrize("name", list_models())


class Witness(MILModel):
    """Stores the coordinates it gets, and the mode in which it is called."""

    name = "witness"

    def __init__(self, *, in_dim: int, num_classes: int) -> None:
        super().__init__(in_dim, num_classes)
        self.head = nn.Sequential(nn.Dropout(0.5), nn.Linear(in_dim, num_classes))
        self.coords_seen: dict[str, np.ndarray] = {}
        self.modes: set[bool] = set()

    def plan(self, coords: np.ndarray, features: np.ndarray | None = None) -> dict[str, np.ndarray]:
        self.coords_seen["plan"] = coords
        return {}

    def aggregate(self, features: Tensor, coords: Tensor, plan: dict[str, Tensor]) -> Output:
        self.coords_seen["aggregate"] = coords.numpy()
        self.modes |= {module.training for module in self.modules()}
        return Output(self.head(features.mean(0)), features.norm(dim=1))


def permuted(bag: Bag, order: np.ndarray) -> Bag:
    return Bag(bag.slide_id, bag.features[order], bag.coords[order], bag.patch_size)


@every_model
@pytest.mark.parametrize("num_classes", [1, 4])
def test_probabilities_are_probabilities_and_scores_are_one_per_instance(
    make_bag: Callable[..., Bag], name: str, num_classes: int
) -> None:
    bag = make_bag(50, DIM)
    answer = predict(
        create_model(
            name, in_dim=DIM, num_classes=num_classes, **get_model_class(name).small_options
        ),
        bag,
    )
    assert answer.slide_id == bag.slide_id
    assert answer.probabilities.shape == (max(2, num_classes),)
    assert answer.columns == tuple(f"p_class_{label}" for label in range(max(2, num_classes)))
    assert ((answer.probabilities >= 0) & (answer.probabilities <= 1)).all()
    assert answer.probabilities.sum() == pytest.approx(1, abs=1e-6)
    assert answer.scores.shape == (50,)
    assert np.isfinite(answer.scores).all()


@pytest.mark.parametrize("name", [n for n in list_models() if not get_model_class(n).order_matters])
def test_scores_stay_with_their_instances_when_rows_move(
    make_bag: Callable[..., Bag], name: str
) -> None:
    model = create_model(name, in_dim=DIM, num_classes=2, **get_model_class(name).small_options)
    bag = make_bag(80, DIM)
    order = np.random.default_rng(1).permutation(80)
    scores = predict(model, bag).scores
    np.testing.assert_allclose(
        predict(model, permuted(bag, order)).scores, scores[order], atol=1e-5
    )
    assert np.ptp(scores) > 1e-3


@every_model
def test_a_prediction_is_the_models_answer_in_patch_units(
    make_bag: Callable[..., Bag], name: str
) -> None:
    bag = make_bag(40, DIM)
    model = create_model(
        name, in_dim=DIM, num_classes=3, **get_model_class(name).small_options
    ).eval()
    with torch.no_grad():
        output = model(torch.from_numpy(bag.features), torch.from_numpy(bag.coords / 256))
    answer = predict(model, bag)
    np.testing.assert_allclose(answer.probabilities, output.logits.softmax(-1), atol=1e-6)
    np.testing.assert_allclose(answer.scores, output.scores, atol=1e-6)


def test_plan_and_model_get_positions_in_patch_units() -> None:
    coords = np.array([[512, 1024], [2560, 512], [0, 0]])
    model = Witness(in_dim=DIM, num_classes=2)
    predict(model, Bag("slide", np.ones((3, DIM), np.float32), coords, patch_size=512))
    assert set(model.coords_seen) == {"plan", "aggregate"}
    for coords in model.coords_seen.values():
        np.testing.assert_array_equal(coords, [[1, 2], [5, 1], [0, 0]])


def test_the_answer_is_that_of_evaluation_and_the_mode_is_given_back(
    make_bag: Callable[..., Bag],
) -> None:
    model, bag = Witness(in_dim=DIM, num_classes=2), make_bag(20, DIM)
    prediction = predict(model.train(), bag)
    assert model.modes == {False}, "some part of the model was called in training mode"
    assert all(module.training for module in model.modules())
    np.testing.assert_array_equal(
        prediction.probabilities, predict(model.eval(), bag).probabilities
    )
    assert not any(module.training for module in model.modules())


@pytest.mark.parametrize("training", [True, False])
def test_the_models_mode_weights_and_gradients_stay_as_they_were(
    make_bag: Callable[..., Bag], *, training: bool
) -> None:
    model = create_model("sac_mil", in_dim=DIM, num_classes=2).train(training)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    predict(model, make_bag(20, DIM))
    assert model.training is training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_mode_is_given_back_even_after_an_error(make_bag: Callable[..., Bag]) -> None:
    model = create_model("sac_mil", in_dim=DIM, num_classes=2).train()
    with pytest.raises(InputError):
        predict(model, make_bag(20, DIM + 1))
    assert model.training


def test_a_bag_of_another_width_is_refused_with_both_widths(make_bag: Callable[..., Bag]) -> None:
    model = create_model("sac_mil", in_dim=DIM, num_classes=2)
    with pytest.raises(InputError, match=rf"20 wide; this sac_mil expects {DIM}"):
        predict(model, make_bag(5, 20))


def test_half_precision_features_give_nearly_the_same_answer(make_bag: Callable[..., Bag]) -> None:
    bag = make_bag(60, DIM)
    half = Bag("half", bag.features.astype(np.float16), bag.coords, bag.patch_size)
    model = create_model("sac_mil", in_dim=DIM, num_classes=2)
    one, other = predict(model, bag), predict(model, half)
    np.testing.assert_allclose(one.probabilities, other.probabilities, atol=5e-3)


def test_features_that_cannot_be_written_to_are_read_without_a_warning(
    make_bag: Callable[..., Bag],
) -> None:
    bag = make_bag(10, DIM)
    model = create_model("sac_mil", in_dim=DIM, num_classes=2)
    before = predict(model, bag)
    bag.features.setflags(write=False)
    np.testing.assert_array_equal(predict(model, bag).scores, before.scores)


def test_the_path_of_a_bag_is_as_good_as_the_bag(
    make_bag: Callable[..., Bag], tmp_path: Path
) -> None:
    bag, model = make_bag(10, DIM), create_model("sac_mil", in_dim=DIM, num_classes=2)
    write_bag(tmp_path / "slide.h5", bag)
    for path in (tmp_path / "slide.h5", str(tmp_path / "slide.h5")):
        np.testing.assert_array_equal(predict(model, path).scores, predict(model, bag).scores)
    with pytest.raises(FormatError, match="there is no such file"):
        predict(model, tmp_path / "missing.h5")


@pytest.mark.parametrize(
    ("bag", "found"),
    [
        (np.ones((5, DIM), np.float32), rf"an array of float32, shape \(5, {DIM}\)"),
        (torch.ones(5, DIM), rf"a tensor of float32, shape \(5, {DIM}\)"),
        ((np.ones((5, DIM)), np.ones((5, 2))), "a tuple of length 2"),
        ([[1.0] * DIM], "a list of length 1"),
        (None, "None"),
        (3, "a int"),
    ],
)
def test_what_is_no_bag_is_rejected_with_what_to_give_instead(bag: Any, found: str) -> None:
    model = create_model("sac_mil", in_dim=DIM, num_classes=2)
    for use in (predict, embed):
        with pytest.raises(InputError, match=f"bag is {found}; expected a sacmil.Bag or the path"):
            use(model, bag)


@pytest.mark.parametrize("model", ["my-model", Path("my-model"), None, nn.Linear(2, 2)])
def test_what_is_no_model_is_rejected_with_where_models_come_from(
    make_bag: Callable[..., Bag], model: Any
) -> None:
    with pytest.raises(ModelError, match=r"model is a .*; expected what sacmil.create_model"):
        predict(model, make_bag(5, DIM))


def test_class_names_travel_with_the_prediction(make_bag: Callable[..., Bag]) -> None:
    model = create_model("sac_mil", in_dim=DIM, num_classes=2)
    model.classes = ("no", "yes")
    assert predict(model, make_bag(5, DIM)).classes == ("no", "yes")


@pytest.mark.parametrize(
    ("probabilities", "label"), [([0.2, 0.5, 0.3], 1), ([0.49], 0), ([0.51], 1), ([0.5, 0.5], 0)]
)
def test_the_label_is_the_most_probable_class(probabilities: list[float], label: int) -> None:
    classes, scores = ["a", "b", "c"][: max(2, len(probabilities))], np.zeros(1, np.float32)
    found = Prediction.from_output("s", np.array(probabilities), scores, None, classes)
    assert (found.label, found.predicted_class) == (label, classes[label])


@pytest.mark.parametrize("what", ["logits", "scores"])
def test_outputs_of_a_wrong_shape_are_reported_with_the_models_name(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise one logit of two trains, and answers every slide alike."""
    model = create_model("mean_pool", in_dim=4, num_classes=2)
    whole = model.aggregate
    monkeypatch.setattr(
        model,
        "aggregate",
        lambda *given: (found := whole(*given))._replace(**{what: getattr(found, what)[:1]}),
    )
    with pytest.raises(ModelError, match=rf"mean_pool returns {what} of shape \(1,\); expected"):
        model(torch.randn(3, 4), torch.rand(3, 2))


def test_embed_returns_the_vector_the_head_sees(make_bag) -> None:
    model = create_model("abmil", in_dim=16, num_classes=2).eval()
    bag = make_bag(12, 16)
    vector = embed(model, bag)
    assert vector.dtype == np.float32
    logits = model.head(torch.from_numpy(vector))
    found = predict(model, bag).probabilities
    np.testing.assert_allclose(logits.softmax(0).detach().numpy(), found, rtol=1e-5)


def test_a_model_without_an_embedding_says_so(make_bag) -> None:
    model = create_model("max_pool", in_dim=16, num_classes=2)
    with pytest.raises(ModelError, match="max_pool has no slide embedding"):
        embed(model, make_bag(12, 16))
