"""What is written into graphs in our own way: torch's numbers in fewer and faster passes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from small_models import WIDTH, make_model
from torch import Tensor, nn

from sacmil.deploy.graph import fold_norms, make_translation_table
from sacmil.encoders.onnx_file import silence_exporter
from sacmil.models.sac_mil import SACBlock
from sacmil.nn.peg import PEG


class Norms(nn.Module):
    """One of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = nn.LayerNorm(12, elementwise_affine=False)
        self.scaled = nn.LayerNorm(12, eps=1e-3, bias=False)
        self.planes = nn.LayerNorm((3, 4))
        for parameter in self.parameters():
            nn.init.normal_(parameter)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.plain(x), self.scaled(x), self.planes(x.reshape(-1, 3, 4))


class Puts(nn.Module):
    """Copies rows to given positions; others stay."""

    def forward(self, x: Tensor, index: Tensor, rows: Tensor) -> Tensor:
        return x.index_copy(0, index, rows)


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> tuple[Norms, Path]:
    torch.manual_seed(0)
    file, module = tmp_path_factory.mktemp("norms") / "norms.onnx", Norms().eval()
    _draw(module, (torch.randn(5, 12),), file)
    return module, file


def _draw(module: nn.Module, given: tuple[Tensor, ...], file: Path) -> None:
    with silence_exporter(), torch.no_grad():
        torch.onnx.export(
            module,
            given,
            file,
            dynamo=True,
            external_data=False,
            verbose=False,
            optimize=False,
            custom_translation_table=make_translation_table(),
            dynamic_shapes=tuple({0: torch.export.Dim.DYNAMIC} for _ in given),
        )


@pytest.mark.parametrize("offset", [0.0, 100.0])
@pytest.mark.parametrize("spread", [1e-4, 1.0, 1e4])
def test_rows_of_any_mean_and_size_are_normalised_as_torch_does(
    graph: tuple[Norms, Path], offset: float, spread: float
) -> None:
    module, file = graph
    x = offset * spread + spread * torch.randn(50, 12)
    x[3] = 7.0  # no spread at all
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    found = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    with torch.no_grad():
        wanted = module(x)
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), atol=2e-4 if offset else 1e-5)


def test_onnxruntime_does_not_fuse_it_again(graph: tuple[Norms, Path], tmp_path: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    options.log_severity_level = 4
    onnxruntime.InferenceSession(graph[1], options, providers=["CPUExecutionProvider"])
    kinds = {node.op_type for node in onnx.load(tmp_path / "optimised.onnx").graph.node}
    assert "ReduceSum" in kinds
    assert not any("LayerNorm" in kind for kind in kinds)


@pytest.mark.parametrize(
    ("shape", "bias"),
    [
        ((70, 6), True),
        ((4, 5, 6), True),
        ((70, 6), False),
        pytest.param((4, 5, 6), False, marks=pytest.mark.slow),
    ],
)
def test_a_linear_layer_is_torchs_and_its_bias_stays_out_of_the_product(
    tmp_path: Path, shape: tuple[int, ...], *, bias: bool
) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(6, 3, bias=bias)
    _draw(layer, (torch.randn(9, *shape[1:]),), tmp_path / "g.onnx")
    options, x = onnxruntime.SessionOptions(), torch.randn(shape)
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        tmp_path / "g.onnx", options, providers=["CPUExecutionProvider"]
    )
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    np.testing.assert_allclose(found, layer(x).detach().numpy(), atol=1e-6)
    kinds = [node.op_type for node in onnx.load(tmp_path / "optimised.onnx").graph.node]
    assert kinds == (["MatMul", "Sub"] if bias else ["MatMul"])


def test_an_empty_tensor_of_another_type_is_rejected(tmp_path: Path) -> None:
    class Whole(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.empty_like(x, dtype=torch.int64).zero_()

    with pytest.raises(torch.onnx.errors.OnnxExporterError):
        _draw(Whole(), (torch.randn(3, 9),), tmp_path / "g")


def test_rows_are_put_where_torch_puts_them(tmp_path: Path) -> None:
    torch.manual_seed(0)
    _draw(Puts(), (torch.randn(9, 3), torch.tensor([4, 1]), torch.randn(2, 3)), tmp_path / "g.onnx")
    x, rows, index = torch.randn(70, 3), torch.randn(50, 3), torch.randperm(70)[:50]
    session = onnxruntime.InferenceSession(tmp_path / "g.onnx", providers=["CPUExecutionProvider"])
    names = [given.name for given in session.get_inputs()]
    given = dict(zip(names, (x.numpy(), index.numpy(), rows.numpy()), strict=True))
    (found,) = session.run(None, given)
    np.testing.assert_array_equal(found, Puts()(x, index, rows).numpy())
    assert "Transpose" not in {node.op_type for node in onnx.load(tmp_path / "g.onnx").graph.node}


@pytest.mark.parametrize("smallest", [1, 5])
def test_a_sequence_is_convolved_on_a_square_as_torch_does(tmp_path: Path, smallest: int) -> None:
    torch.manual_seed(0)
    module = PEG(4, kernels=((3, 3),), smallest=smallest).eval()
    _draw(module, (torch.randn(70, 4),), tmp_path / "g.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "g.onnx", providers=["CPUExecutionProvider"])
    for n in (1, 2, 9, 10, 50):
        h = torch.randn(n, 4)
        (found,) = session.run(None, {session.get_inputs()[0].name: h.numpy()})
        np.testing.assert_allclose(found, module(h).detach().numpy(), atol=1e-5)


def test_only_rows_are_put(tmp_path: Path) -> None:
    class Columns(nn.Module):
        def forward(self, x: Tensor, index: Tensor, columns: Tensor) -> Tensor:
            return x.index_copy(1, index, columns)

    with pytest.raises(torch.onnx.errors.OnnxExporterError):
        _draw(
            Columns(), (torch.randn(3, 9), torch.tensor([4, 1]), torch.randn(3, 2)), tmp_path / "g"
        )


def trained(**options: Any) -> nn.Module:
    """A SAC-MIL whose parameters are anything but their first values."""
    torch.manual_seed(0)
    model = make_model("sac_mil", **options).double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    return model


@pytest.mark.parametrize(
    "options",
    [{}, {"mlp": "mlp"}, {"position": "alibi"}, {"tail": "split"}, {"residual": False}],
    ids=str,
)
@pytest.mark.parametrize("n", [1, 9, 130])
def test_predictions_stay_the_same(options: dict[str, Any], n: int) -> None:
    model = trained(**options)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    features, coords = torch.randn(n, WIDTH).double(), torch.rand(n, 2).double()
    wanted, found = model(features, coords), fold_norms(model)(features, coords)
    torch.testing.assert_close(found.logits, wanted.logits)
    torch.testing.assert_close(found.scores, wanted.scores)
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_nothing_is_left_of_the_norms_but_the_norm() -> None:
    blocks = [part for part in fold_norms(trained()).modules() if isinstance(part, SACBlock)]
    assert blocks
    assert all(block.norm.weight is None and block.norm.bias is None for block in blocks)
