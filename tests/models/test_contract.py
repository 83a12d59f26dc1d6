"""What every registered model promises; a new model file is subjected to it without an edit."""

from __future__ import annotations

import copy
import inspect
import pkgutil

import numpy as np
import pytest
import torch

import sacmil.models
from sacmil import create_model, describe_model, list_models
from sacmil.errors import InputError, OptionError
from sacmil.models import MILModel, Recipe, Sample
from sacmil.models._registry import get_model_class
from sacmil.training.trainer import Trainer

IN_DIM = 24
INSTANCES = 70

every_model = pytest.mark.parametrize("name", list_models())


def make(name: str, num_classes: int = 2, **options: object) -> MILModel:
    """A small model: no truth here depends on its size."""
    torch.manual_seed(1)
    options = {**get_model_class(name).small_options, **options}
    model = create_model(name, in_dim=IN_DIM, num_classes=num_classes, **options)
    for parameter in model.parameters():
        if parameter.ndim > 1 and not parameter.any():  # a layer that begins as nothing
            torch.nn.init.normal_(parameter, std=0.1)
    return model.eval()


def planning(name: str) -> MILModel:
    """The model with whatever option gives it something to plan."""
    shuffles = {"inference_shuffles": 2}
    return make(name, **{k: v for k, v in shuffles.items() if k in describe_model(name).options})


def place(instances: int = INSTANCES, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Features at distinct places of an irregular grid, in no particular order."""
    random = np.random.default_rng(seed)
    side = int(np.ceil(np.sqrt(3 * instances)))
    places = random.choice(side * side, instances, replace=False)
    coords = np.stack(np.divmod(places, side), axis=1).astype(np.float64)
    features = random.standard_normal((instances, IN_DIM)).astype(np.float32)
    return torch.from_numpy(features), torch.from_numpy(coords)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.allclose(a, b, atol=1e-5, rtol=1e-4)


@every_model
@pytest.mark.parametrize("num_classes", [1, pytest.param(2, marks=pytest.mark.slow), 5])
def test_the_answer_is_whole_and_finite(name: str, num_classes: int) -> None:
    model = make(name, num_classes)
    for instances in (1, 2, 3, 17, INSTANCES):
        output = model(*place(instances))
        assert output.logits.shape == (num_classes,), "logits are (C,): one bag, no batch axis"
        assert output.scores.shape == (instances,), "scores are (N,), in the bag's own order"
        assert output.logits.isfinite().all(), f"a bag of {instances} has no finite answer"
        assert output.scores.isfinite().all(), f"a bag of {instances} has no finite scores"
        if output.class_scores is not None:
            assert output.class_scores.shape == (instances, num_classes)
            assert output.class_scores.isfinite().all()


@every_model
def test_evaluation_is_deterministic(name: str) -> None:
    model, bag = make(name), place()
    first, second = model(*bag), model(*bag)
    sentence = "the same bag got two answers in eval mode: draw at random in training only"
    assert first.logits.equal(second.logits), sentence
    assert first.scores.equal(second.scores), sentence


@every_model
def test_a_plan_made_beforehand_changes_nothing(name: str) -> None:
    model = make(name)
    features, coords = place()
    plan = model.plan(coords.numpy(), features.numpy())
    given, made = model(features, coords, plan), model(features, coords)
    sentence = "plan must be a pure function of coords and features: callers cache it"
    assert given.logits.equal(made.logits), sentence
    assert given.scores.equal(made.scores), sentence


@every_model
def test_a_plan_is_numpy_arrays_and_can_be_made_without_features(name: str) -> None:
    model = planning(name)
    features, coords = place()
    for plan in (model.plan(coords.numpy()), model.plan(coords.numpy(), features.numpy())):
        for key, value in plan.items():
            assert isinstance(value, np.ndarray), (
                f"plan[{key!r}] is a {type(value).__name__}; plans are made without torch, as "
                "numpy arrays"
            )
    output = model(features, coords, model.plan(coords.numpy()))
    assert output.logits.isfinite().all()


@pytest.mark.parametrize("name", [n for n in list_models() if get_model_class(n).plan_keys])
def test_a_plan_of_another_bag_is_refused(name: str) -> None:
    model = planning(name)
    for other in (1, INSTANCES - 1, INSTANCES + 1):
        with pytest.raises(InputError):
            model(*place(), model.plan(place(other)[1].numpy()))
    with pytest.raises(InputError, match="the plan lacks"):
        model(*place(), {})


@every_model
def test_what_a_plan_must_hold_is_declared(name: str) -> None:
    model = planning(name)
    assert model.plan_keys <= set(model.plan(place()[1].numpy())), "plan_keys names what is planned"


@every_model
def test_row_order_matters_exactly_where_declared(name: str) -> None:
    model = make(name)
    features, coords = place()
    rows = torch.from_numpy(np.random.default_rng(5).permutation(INSTANCES))
    output, shuffled = model(features, coords), model(features[rows], coords[rows])
    unchanged = same(output.logits, shuffled.logits) and same(output.scores[rows], shuffled.scores)
    assert unchanged or model.order_matters, (
        "another order of rows changed the answer: sort by the coordinates in plan, or set "
        "order_matters = True on the class"
    )
    assert not (unchanged and model.order_matters), (
        "another order of rows changed nothing: remove order_matters = True from the class"
    )


@every_model
def test_coordinates_matter_exactly_where_declared(name: str) -> None:
    model = make(name)
    features, coords = place()
    rows = torch.from_numpy(np.random.default_rng(5).permutation(INSTANCES))
    moved = model(features, coords[rows])
    unchanged = same(model(features, coords).logits, moved.logits)
    assert unchanged or model.coords_matter, (
        "other places changed the answer: remove coords_matter = False from the class"
    )
    assert not (unchanged and model.coords_matter), (
        "other places changed nothing: set coords_matter = False on the class"
    )


@every_model
def test_scores_distinguish_instances(name: str) -> None:
    assert make(name)(*place()).scores.unique().numel() > INSTANCES / 2, (
        "most instances share a score"
    )


@every_model
@pytest.mark.parametrize("num_classes", [1, 3])
def test_probabilities_are_probabilities(name: str, num_classes: int) -> None:
    model = make(name, num_classes)
    probabilities = model.probabilities(model(*place()))
    assert probabilities.shape == (num_classes,)
    assert ((probabilities >= 0) & (probabilities <= 1)).all()
    if num_classes > 1:
        assert probabilities.sum().item() == pytest.approx(1.0, abs=1e-6)


@every_model
@pytest.mark.parametrize("num_classes", [1, 3])
def test_gradients_reach_every_parameter_that_is_alive(name: str, num_classes: int) -> None:
    model = make(name, num_classes).train()
    losses = model.losses(model(*place()), torch.tensor(min(1, num_classes - 1) or 1))
    sum(losses.values()).backward()
    without = {n for n, p in model.named_parameters() if p.grad is None}
    assert without == model.dead_parameters, (
        "the parameters without a gradient are not those the class lists in dead_parameters"
    )
    for parameter, p in model.named_parameters():
        assert p.grad is None or p.grad.isfinite().all(), f"the gradient of {parameter} is infinite"


@every_model
def test_every_parameter_is_trained_by_exactly_one_loss(name: str) -> None:
    model = make(name).train()
    groups = model.parameter_groups()
    losses = model.losses(model(*place()), torch.tensor(1))
    assert set(groups) == set(losses), "parameter_groups and losses need the same keys"
    grouped = [name for group in groups.values() for name in group]
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    assert sorted(grouped) == sorted(trained), (
        "parameter_groups must name every parameter that requires a gradient exactly once"
    )


@every_model
def test_modules_without_gradient_from_the_logits_are_declared(name: str) -> None:
    model = make(name).train()
    output, target = model(*place(20)), torch.tensor(1)
    names = [n for n, p in model.named_parameters() if n not in model.dead_parameters]
    parameters = [p for n, p in model.named_parameters() if n in names]
    loss = torch.nn.functional.cross_entropy(output.logits, target)
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    without = {n.split(".")[0] for n, grad in zip(names, found, strict=True) if grad is None}
    assert without == model.needs_losses, (
        "the modules cross-entropy on the logits leaves without gradient are not those the class "
        "lists in needs_losses"
    )
    assert not without or "Train it with ``losses``" in (
        inspect.getdoc(get_model_class(name)) or ""
    )
    assert all(module in describe_model(name).training_notes for module in without)


@every_model
def test_the_sum_of_the_losses_trains_each_group_as_its_own_loss_does(name: str) -> None:
    model = make(name).train()
    groups = model.parameter_groups()
    if len(groups) == 1:
        return
    losses = model.losses(model(*place(20)), torch.tensor(1))
    for group, named in groups.items():
        both = [
            torch.autograd.grad(loss, list(named.values()), retain_graph=True)
            for loss in (losses[group], sum(losses.values()))
        ]
        assert all(torch.equal(own, summed) for own, summed in zip(*both, strict=True)), (
            f"another loss than its own reaches {group}: detach what it is given"
        )


@every_model
@pytest.mark.parametrize("num_classes", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_training_lowers_the_loss(name: str, num_classes: int) -> None:
    model = make(name, num_classes)
    samples = []
    for label in (0, 1):
        features, coords = place(60, seed=label)
        samples.append(Sample(features + 2 * label, coords, {}, torch.tensor(label)))
    samples = [s._replace(plan=model.plan(s.coords.numpy(), s.features.numpy())) for s in samples]
    for stage in model.stages(samples):
        trainer = Trainer(stage, Recipe(lr=1e-2, accumulate=2))
        losses: list[float] = []
        while len(losses) < 20 and not lowered(losses):
            losses.append(sum(trainer.step(samples).values()))
        assert lowered(losses), (
            f"20 steps on two bags took {type(stage).__name__}'s loss from {losses[0]:.3f} to "
            f"{losses[-1]:.3f} only"
        )


def lowered(losses: list[float]) -> bool:
    """Whether the last three are well below the first."""
    return len(losses) > 3 and bool(np.mean(losses[-3:]) < 0.8 * losses[0])


@every_model
def test_the_constructor_is_the_configuration(name: str) -> None:
    model = make(name)
    assert set(model.options) == {"in_dim", "num_classes", *describe_model(name).options}
    twin = create_model(name, **model.options)
    shapes = [{k: v.shape for k, v in m.state_dict().items()} for m in (model, twin)]
    assert shapes[0] == shapes[1]
    assert copy.deepcopy(model).options == model.options


@every_model
def test_the_constructor_takes_keywords_only(name: str) -> None:
    for parameter in inspect.signature(get_model_class(name)).parameters.values():
        assert parameter.kind is parameter.KEYWORD_ONLY, (
            f"{parameter} can be given by position: begin with def __init__(self, *, in_dim, ..."
        )


def test_every_public_file_registers_a_model() -> None:
    files = {module.name for module in pkgutil.iter_modules(sacmil.models.__path__)}
    homes = {get_model_class(name).__module__.rpartition(".")[2] for name in list_models()}
    assert {file for file in files if not file.startswith("_")} == homes, (
        "a file of models/ without @register_model takes an underscore before its name"
    )


@every_model
def test_every_option_is_explained(name: str) -> None:
    description = describe_model(name)
    assert description.summary.endswith("."), "the class docstring begins with a sentence"
    assert set(description.help) == set(description.options), (
        "the docstring's Args: must have a line for every option, and for nothing else"
    )


@every_model
def test_both_recipes_are_there(name: str) -> None:
    assert {"paper", "official"} <= set(get_model_class(name).recipes), (
        "recipes need the keys 'paper' and 'official'"
    )


@every_model
def test_a_bag_that_does_not_fit_is_refused_in_one_sentence(name: str) -> None:
    model = make(name)
    for features, coords, words in (
        (torch.zeros(5, IN_DIM + 1), torch.zeros(5, 2), f"in_dim={IN_DIM + 1}"),
        (torch.zeros(1, 5, IN_DIM), torch.zeros(5, 2), "without a batch axis"),
        (torch.zeros(0, IN_DIM), torch.zeros(0, 2), "N >= 1"),
        (torch.zeros(5, IN_DIM), torch.zeros(4, 2), "4 coordinates for 5 instances"),
        (torch.zeros(5, IN_DIM), torch.zeros(5, 3), "expected (N, 2)"),
        (torch.zeros(5, IN_DIM), None, "coords are None"),
        ("slide.h5", None, "features are a str"),
    ):
        with pytest.raises(InputError) as error:
            model(features, coords)
        assert words in str(error.value)


@every_model
def test_unknown_options_and_sizes_are_refused(name: str) -> None:
    with pytest.raises(OptionError, match="has no option 'no_such_option'"):
        create_model(name, in_dim=4, num_classes=2, no_such_option=1)
    for sizes in ({"in_dim": 0, "num_classes": 2}, {"in_dim": 4, "num_classes": 0}):
        with pytest.raises(OptionError, match="at least 1"):
            create_model(name, **sizes)


@every_model
def test_a_model_kept_in_bfloat16_answers_nearly_the_same(name: str) -> None:
    model, bag = make(name), place(40)
    answer = model(*bag).logits
    half = model.to(torch.bfloat16)(*bag)
    assert half.logits.isfinite().all()
    assert half.scores.isfinite().all()
    assert torch.allclose(half.logits.float(), answer, atol=0.1)


@every_model
def test_coordinates_of_other_precision_make_the_same_plan(name: str) -> None:
    model = planning(name)
    features, _ = place(300)
    grid = torch.stack([torch.arange(300) % 20, torch.arange(300) // 20], dim=1)
    exact = (grid * 359 + torch.tensor([43567, 42613])).double() / 359
    plans = [model.plan(coords.numpy(), features.numpy()) for coords in (exact, exact.float())]
    for key in plans[0]:
        assert np.array_equal(plans[0][key], plans[1][key]), f"{key} depends on float32's rounding"


@every_model
def test_features_of_other_precision_are_taken(name: str) -> None:
    model = make(name)
    features, coords = place()
    half = model(features.half(), coords)
    assert half.logits.dtype == torch.float32
    assert torch.allclose(half.logits, model(features, coords).logits, atol=0.02)


# --- the slide embedding -------------------------------------------------------------------------


@every_model
def test_the_embedding_is_one_vector_of_a_fixed_size(name: str) -> None:
    model = make(name)
    sizes = set()
    for instances in (1, 7, INSTANCES):
        embedding = model(*place(instances)).embedding
        if name == "max_pool":
            assert embedding is None
            continue
        assert embedding.ndim == 1
        assert torch.isfinite(embedding).all()
        sizes.add(len(embedding))
    assert len(sizes) == (0 if name == "max_pool" else 1)


@pytest.mark.parametrize("name", sorted({*list_models()} - {"max_pool"}))
def test_other_logits_have_another_embedding(name: str) -> None:
    model = make(name)
    first, second = model(*place(seed=0)), model(*place(seed=1))
    assert not torch.equal(first.logits, second.logits)
    assert not torch.equal(first.embedding, second.embedding)


LINEAR = {
    "abmil": "head", "abmil_gated": "head", "mean_pool": "head", "clam_sb": "head", "dsmil": "head",
    "dtfd": "tier2.head", "hipt": "head", "longnet": "head", "mambamil": "head", "mammil": "head",
    "r2t": "head", "transmil": "head", "sac_mil": "head", "sac_mil_local": "head",
    "sac_mil_near_far": "head",
}  # fmt: skip


@pytest.mark.parametrize("name", LINEAR)
def test_the_head_of_the_embedding_gives_the_logits(name: str) -> None:
    model = make(name)
    output = model(*place())
    head = model.get_submodule(LINEAR[name])
    torch.testing.assert_close(head(output.embedding), output.logits)
