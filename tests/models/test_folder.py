"""A model folder gives back the model, or says what is wrong with the folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from sacmil import Bag, create_model, list_models, load_model, predict, save_model
from sacmil.card import CARD_FILE
from sacmil.errors import ModelError, ModelFolderError, OptionError
from sacmil.models import MILModel, Output, _folder, _registry
from sacmil.models._folder import WEIGHTS
from sacmil.models._registry import get_model_class

IN_DIM = 12
SMALL = {"dim": 8, "k": 4, "depth": 2}

every_model = pytest.mark.parametrize("name", list_models())


def small(seed: int = 0, **changes: Any) -> MILModel:
    torch.manual_seed(seed)
    return create_model("sac_mil", **({"in_dim": IN_DIM, "num_classes": 2} | SMALL | changes))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    save_model(path, small(), classes=["benign", "tumour"], notes={"fold": 3})
    return path


def edit_card(folder: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    card = json.loads((folder / CARD_FILE).read_text())
    edit(card)
    card.pop("card_sha256")  # as whoever edits a card on purpose has to
    (folder / CARD_FILE).write_text(json.dumps(card))


def test_a_card_whose_checksum_lost_its_name_is_rejected(tmp_path: Path) -> None:
    save_model(tmp_path / "m", create_model("mean_pool", in_dim=4, num_classes=2))
    file = tmp_path / "m" / CARD_FILE
    file.write_text(file.read_text().replace("card_sha256", "card_shi256"))
    with pytest.raises(
        ModelFolderError, match=r"unknown entry 'card_shi256'; expected .*card_sha256"
    ):
        load_model(tmp_path / "m")


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@every_model
@pytest.mark.parametrize("num_classes", [1, 3])
def test_a_model_comes_back_with_equal_weights_and_equal_answers(
    tmp_path: Path, make_bag: Callable[..., Bag], name: str, num_classes: int
) -> None:
    model = create_model(
        name, in_dim=IN_DIM, num_classes=num_classes, **get_model_class(name).small_options
    ).eval()
    save_model(tmp_path / "m", model)
    loaded = load_model(tmp_path / "m")
    assert type(loaded) is type(model)
    assert loaded.options == model.options
    assert not loaded.training
    weights, again = model.state_dict(), loaded.state_dict()
    assert list(weights) == list(again)
    assert all(torch.equal(weights[key], again[key]) for key in weights)
    bag = make_bag(100, IN_DIM)
    before, after = predict(model, bag), predict(loaded, bag)
    np.testing.assert_array_equal(before.probabilities, after.probabilities)
    np.testing.assert_array_equal(before.scores, after.scores)


def test_options_that_are_not_the_defaults_come_back(tmp_path: Path) -> None:
    options = {"centers": "kd", "pool": "attention", "residual": False, "scale": 7.5}
    save_model(tmp_path / "m", small(**options))
    loaded = load_model(tmp_path / "m")
    assert {key: loaded.options[key] for key in options} == options


def test_class_names_come_back_and_survive_another_save(folder: Path) -> None:
    loaded = load_model(folder)
    assert loaded.classes == ("benign", "tumour")
    save_model(folder, loaded)
    assert load_model(folder).classes == ("benign", "tumour")


def test_equal_models_give_equal_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        save_model(tmp_path / name, small())
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_a_folder_holds_weights_and_a_card_and_no_pickle(folder: Path) -> None:
    assert set(contents(folder)) == {WEIGHTS, CARD_FILE}
    assert json.loads((folder / CARD_FILE).read_text())["notes"] == {"fold": 3}
    assert set(load_file(folder / WEIGHTS)) == set(small().state_dict())


# Saving where something is.


def test_an_older_model_is_replaced_wholly(folder: Path) -> None:
    newer = small(seed=1, dim=10)
    save_model(folder, newer)
    loaded = load_model(folder)
    assert loaded.options["dim"] == 10
    assert torch.equal(loaded.head.weight, newer.head.weight)
    assert [file.name for file in folder.parent.iterdir()] == ["model"]


@pytest.mark.parametrize("kind", ["file", "empty folder", "other folder", "model and more"])
def test_a_folder_with_other_files_is_never_overwritten(folder: Path, kind: str) -> None:
    if kind != "model and more":
        shutil.rmtree(folder)
    if kind == "file":
        folder.write_text("thesis")
    else:
        folder.mkdir(exist_ok=True)
    if kind in ("other folder", "model and more"):
        (folder / "thesis.tex").write_text("thesis")
    before = sorted(folder.parent.rglob("*"))
    with pytest.raises(ModelFolderError, match=r"model: .*choose another path"):
        save_model(folder, small())
    assert sorted(folder.parent.rglob("*")) == before


@pytest.mark.parametrize("fails", ["Card", "atomic_directory"])
def test_an_error_while_saving_leaves_the_older_model(
    folder: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    before = contents(folder)

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(_folder, fails, fail)
    with pytest.raises(OSError, match="No space left"):
        save_model(folder, small(seed=1))
    assert contents(folder) == before
    assert len(list(folder.parent.iterdir())) == 1


def test_a_full_disk_between_weights_and_card_leaves_the_older_model(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(folder)

    write = Path.write_bytes

    def full(path: Path, content: bytes) -> int:
        if path.name == "card.json":
            raise OSError(28, "No space left on device")
        return write(path, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        save_model(folder, small(seed=1))
    assert contents(folder) == before
    assert len(list(folder.parent.iterdir())) == 1


@pytest.mark.parametrize("notes", [{"a": object()}, {"a": {1, 2}}, {"a": np.float32(1)}])
def test_notes_json_cannot_hold_are_refused(tmp_path: Path, notes: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match="cannot be written as JSON"):
        save_model(tmp_path / "m", small(), notes=notes)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("classes", [["a"], ["a", "b", "c"], "ab", [0, 1], ["a", "a"]])
def test_class_names_that_do_not_fit_the_outputs_are_refused(tmp_path: Path, classes: Any) -> None:
    with pytest.raises(ModelError, match="expected 2 different names"):
        save_model(tmp_path / "m", small(), classes=classes)


# Loading what is damaged.


def cut(file: str, length: int) -> Callable[[Path], Any]:
    return lambda f: (f / file).write_bytes((f / file).read_bytes()[:length])


def other_weights(folder: Path) -> None:
    save_model(folder.parent / "other", small(seed=1))
    shutil.copy(folder.parent / "other" / WEIGHTS, folder / WEIGHTS)


def flip_a_bit(folder: Path) -> None:
    data = bytearray((folder / WEIGHTS).read_bytes())
    data[-5] ^= 1
    (folder / WEIGHTS).write_bytes(data)


def claims(**values: Any) -> Callable[[Path], Any]:
    return lambda folder: edit_card(folder, lambda card: card.update(values))


def options(**values: Any) -> Callable[[Path], Any]:
    return lambda folder: edit_card(folder, lambda card: card["options"].update(values))


def without_in_dim(folder: Path) -> None:
    edit_card(folder, lambda card: card["options"].pop("in_dim"))


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda f: (f / CARD_FILE).unlink(), "there is no card.json"),
        (lambda f: (f / WEIGHTS).unlink(), "No such file"),
        (cut(CARD_FILE, 40), "cannot be read as JSON"),
        (cut(WEIGHTS, 0), "truncated or replaced"),
        (cut(WEIGHTS, 100), "truncated or replaced"),
        (flip_a_bit, "truncated or replaced"),
        (other_weights, "truncated or replaced"),
        (claims(model="sac_mill"), "did you mean 'sac_mil'"),
        (claims(schema_version=2), "has schema version 2"),
        (claims(weights_sha256=None), "weights_sha256 is None"),
        (options(dimm=8), "did you mean 'dim'?"),
        (options(pool="maen"), "did you mean 'mean'?"),
        (options(in_dim="wide"), "in_dim='wide'"),
        (options(dim=10), "blocks.0.norm.bias is (8,) in the weights, (10,) by the card"),
        (options(dim=10**6), "(1000000,) by the card"),
        (options(in_dim=10**30), "do not make a model"),
        (options(in_dim=10**13), "(8, 10000000000000) by the card"),
        (options(depth=1), "blocks.1.norm.bias is (8,) in the weights, missing by the card"),
        (options(depth=3), "blocks.2.norm.bias is missing in the weights"),
        (options(depth=10**9), "depth=1000000000"),
        (options(name="sac_mil"), "multiple values"),
        (without_in_dim, "in_dim"),
    ],
)
def test_a_damaged_folder_is_refused_with_its_name_and_its_fault(
    folder: Path, damage: Callable[[Path], Any], expected: str
) -> None:
    damage(folder)
    with pytest.raises(ModelFolderError) as raised:
        load_model(folder)
    message = str(raised.value)
    assert message.startswith(str(folder))
    assert expected in message
    assert "\n" not in message


@pytest.mark.parametrize("weights", ["truncated", "another size", "a tensor more", "garbage"])
def test_weights_that_do_not_fit_are_refused_even_with_the_right_hash(
    folder: Path, weights: str
) -> None:
    import hashlib

    file = folder / WEIGHTS
    tensors = load_file(file)
    if weights == "truncated":
        file.write_bytes(file.read_bytes()[:-8])
    elif weights == "another size":
        save_file({name: torch.zeros(3) for name in tensors}, file)
    elif weights == "a tensor more":
        save_file(tensors | {"extra": torch.zeros(3)}, file)
    else:
        file.write_bytes(b"\xff" * 64)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    edit_card(folder, lambda card: card.update(weights_sha256=digest))
    with pytest.raises(ModelFolderError, match="do not make a model"):
        load_model(folder)


@pytest.mark.parametrize("damage", ['"dim": 8', '"benign"', '"fold": 3'])
def test_a_card_with_one_changed_value_is_noticed(folder: Path, damage: str) -> None:
    text = (folder / CARD_FILE).read_text()
    assert damage in text
    (folder / CARD_FILE).write_text(text.replace(damage, damage[:-1] + "4" + damage[-1:]))
    with pytest.raises(ModelFolderError, match=r"card\.json: was changed after it was written"):
        load_model(folder)


def test_a_card_without_class_names_loads(folder: Path) -> None:
    edit_card(folder, lambda card: card.pop("classes"))
    assert load_model(folder).classes is None


@pytest.mark.parametrize("kind", ["missing", "a file"])
def test_what_is_no_folder_is_reported(tmp_path: Path, kind: str) -> None:
    if kind == "a file":
        (tmp_path / "m").write_text("x")
    with pytest.raises(ModelFolderError, match=str(tmp_path / "m")):
        load_model(tmp_path / "m")


class _Odd(MILModel):
    """A model whose constructor reads numbers from a tensor and ties two layers."""

    def __init__(self, *, in_dim: int, num_classes: int) -> None:
        super().__init__(in_dim, num_classes)
        self.rates = torch.linspace(0, 0.1, 3).tolist()
        self.first = nn.Linear(in_dim, in_dim, bias=False)
        self.again = nn.Linear(in_dim, in_dim, bias=False)
        self.again.weight = self.first.weight
        self.head = nn.Linear(in_dim, num_classes)

    def aggregate(self, features: Tensor, coords: Tensor, plan: dict[str, Tensor]) -> Output:
        h = self.again(self.first(features))
        return Output(self.head(h.mean(0)), h[:, 0])


def test_tied_weights_and_numbers_read_in_the_constructor_can_be_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_registry, "_MODELS", {**_registry._MODELS, "odd": _Odd})
    monkeypatch.setattr(_Odd, "name", "odd", raising=False)
    model = create_model("odd", in_dim=4, num_classes=2)
    save_model(tmp_path / "odd", model)
    loaded = load_model(tmp_path / "odd")
    assert loaded.first.weight is loaded.again.weight
    bag = torch.randn(5, 4), torch.rand(5, 2)
    assert torch.equal(loaded(*bag).logits, model.eval()(*bag).logits)


def test_a_compiled_model_is_saved_as_the_model_itself(tmp_path: Path) -> None:
    model = create_model("mean_pool", in_dim=4, num_classes=2)
    save_model(tmp_path / "m", torch.compile(model, backend="eager"))
    found = load_model(tmp_path / "m").state_dict()
    assert {name: value.tolist() for name, value in found.items()} == {
        name: value.tolist() for name, value in model.state_dict().items()
    }


def test_only_a_model_is_saved(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="`model` is 'abmil'; expected a model"):
        save_model(tmp_path / "new" / "x", "abmil")
    with pytest.raises(OptionError, match=r"`path` is [\s\S]*expected the path of a folder"):
        save_model(small(), tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


class Recorded(TorchDispatchMode):
    """The names of what torch computes."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["abmil", "longnet"])  # two ways to draw normal values
def test_a_model_without_memory_gets_no_normal_values(name: str) -> None:
    with Recorded() as recorded:
        model = _folder.create_meta_model(name, in_dim=IN_DIM, num_classes=2)
    assert all(parameter.is_meta for parameter in model.parameters())
    assert "empty" in recorded.names
    assert not {"normal", "normal_"} & recorded.names
    with Recorded() as recorded:
        create_model(name, in_dim=IN_DIM, num_classes=2)
    assert "normal_" in recorded.names
