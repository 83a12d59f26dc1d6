"""Losses against the published code's numbers, the definitions, and each other."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from sacmil.tasks.losses import coral_loss, corn_loss, huber_loss, multilabel_loss

few = settings(deadline=None, max_examples=30, derandomize=True)
NAN = float("nan")


def parse(text: str) -> Tensor:
    """Numbers in rows."""
    return torch.from_numpy(np.array([line.split() for line in text.split("\n")[1:-1]], float))


# of ../shared/golden/targets/ordinal.npz: coral-pytorch 1.4.0
LOGITS = parse("""
-1.188805276248019 0.90973651061012 -0.9524432822739446 -1.7271629221865639
0.6475539371757538 -0.6249646672304907 -1.4287650805242869 -3.0344430118380403
-0.6049770297947726 0.7364923355755865 -1.260778511498842 -0.09124025123794102
0.9263712768382206 0.16224257060421987 -2.54652358377123 -1.0353711611968162
-0.1250331529275321 2.1873659827565 1.2981240190536987 -0.6168117086306639
-0.11384230806856238 0.888224927561762 -1.6074933680747296 0.32414667586806545
2.299159630516611 -0.8246811523936883 -0.45294118876515843 -1.032206585563047
2.2732605871577274 -0.5306779263450985 -0.47510562334515904 -3.645393617394622
0.7049135825611208 1.3425320192273686 -0.9632145696545017 1.4975449069174482
-0.2718351688073086 1.0625176148053317 -2.6347339430653554 0.1336619204848466
""")
LEVELS = torch.tensor([0, 1, 2, 3, 4, 1, 1, 2, 2, 0])
IMPORTANCE = torch.tensor([1, 0.5, 2, 1], dtype=torch.float64)
CORN_GRADIENT = parse("""
0.0093389071702 0 0 0
-0.0137416385399 0.0139461263662 0 0
-0.0258717657999 -0.0129508659643 0.00883359619653 0
-0.0113464593326 -0.0183811238298 -0.0370935847388 0.0104817647373
-0.0212487051722 -0.00403563116117 -0.008579236431 -0.0259797229854
-0.0211371951684 0.0283409489659 0 0
-0.00364770335882 0.0121908354264 0 0
-0.00373447409214 -0.0251856485456 0.0153363410053 0
-0.0132289490023 -0.00828375909168 0.0110494018529 0
0.0172982647744 0 0 0
""")
CORAL_GRADIENT = parse("""
0.0233472679255 0.0712946241647 0.0278393723733 0.0150950832947
-0.0343540963498 0.0348653159156 0.0193291171919 0.00458938850565
-0.0646794144998 -0.0323771649107 0.0220839904913 0.0477205748098
-0.0283661483316 -0.0459528095746 -0.092733961847 0.0262044118431
-0.0531217629305 -0.0100890779029 -0.0214480910775 -0.0649493074634
-0.0528429879209 0.0708523724146 0.0166936917358 0.0580334495085
-0.00911925839705 0.0304770885661 0.0388661700057 0.0262656535225
-0.00933618523036 -0.062964121364 0.0383408525133 0.002544668825
-0.0330723725058 -0.0207093977292 0.0276235046322 0.081720802224
0.043245661936 0.0743171370724 0.00669361818935 0.0533365820126
""")
CORN_BY_ROW = parse("""
0.26588493780259004 0.4248039905004479 0.560489145603833 0.968686324481106 0.5384381851528703
0.9922420661841269 0.22956794881431325 0.5249478345302179 0.31896583297656056 0.5664380908915243
""").ravel()

LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "corn": corn_loss,
    "coral": coral_loss,
    "multilabel": multilabel_loss,
    "huber": huber_loss,
}


def draw_inputs(name: str, rows: int = 6, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Outputs (rows, 4) in float64 and targets that fit a loss; some labels are missing."""
    random = torch.Generator().manual_seed(seed)
    outputs = 2 * torch.randn(rows, 4, generator=random, dtype=torch.float64)
    if name in ("corn", "coral"):
        return outputs, torch.randint(0, 5, (rows,), generator=random)
    if name == "huber":
        return outputs, torch.randn(rows, 4, generator=random, dtype=torch.float64)
    labels = torch.randint(0, 2, (rows, 4), generator=random).double()
    return outputs, labels.masked_fill(torch.rand(rows, 4, generator=random) < 0.3, NAN)


def gradient(loss: Callable[[Tensor, Tensor], Tensor], outputs: Tensor, y: Tensor) -> Tensor:
    outputs = outputs.detach().requires_grad_()
    return torch.autograd.grad(loss(outputs, y).sum(), outputs)[0]


@pytest.mark.parametrize(
    ("loss", "golden", "golden_gradient"),
    [
        (corn_loss, 0.5746903007023852, CORN_GRADIENT),
        (coral_loss, 2.277936684547822, CORAL_GRADIENT),
    ],
)
def test_ordinal_losses_and_gradients_are_the_golden_ones(
    loss: Callable[[Tensor, Tensor], Tensor], golden: float, golden_gradient: Tensor
) -> None:
    assert loss(LOGITS, LEVELS).item() == pytest.approx(golden, abs=1e-10)
    found = gradient(loss, LOGITS, LEVELS)
    torch.testing.assert_close(found, golden_gradient, rtol=0, atol=1e-10)


def test_coral_with_importance_is_the_golden_one() -> None:
    found = coral_loss(LOGITS, LEVELS, IMPORTANCE)
    assert found.item() == pytest.approx(2.449887428442536, abs=1e-10)


def test_corn_of_one_row_is_the_golden_one() -> None:
    found = [corn_loss(LOGITS[i : i + 1], LEVELS[i : i + 1]) for i in range(10)]
    torch.testing.assert_close(torch.stack(found), CORN_BY_ROW, rtol=0, atol=1e-10)


@few
@given(st.integers(0, 2**32 - 1), st.integers(1, 8))
def test_corn_is_the_mean_over_the_tasks_that_rows_reach(seed: int, rows: int) -> None:
    logits, y = draw_inputs("corn", rows, seed)
    losses = [
        functional.binary_cross_entropy_with_logits(z, (level > k).to(z))
        for row, level in zip(logits, y, strict=True)
        for k, z in enumerate(row)
        if level >= k
    ]
    torch.testing.assert_close(corn_loss(logits, y), torch.stack(losses).mean())


@few
@given(st.integers(0, 2**32 - 1), st.integers(1, 8))
def test_coral_is_the_sum_over_thresholds_and_the_mean_over_rows(seed: int, rows: int) -> None:
    logits, y = draw_inputs("coral", rows, seed)
    wanted = torch.tensor([[float(level > k) for k in range(4)] for level in y]).double()
    expected = functional.binary_cross_entropy_with_logits(logits, wanted, reduction="sum") / rows
    torch.testing.assert_close(coral_loss(logits, y), expected)


@few
@given(st.integers(0, 2**32 - 1), st.sampled_from([None, [0.5, 1, 2, 7]]))
def test_multilabel_is_the_mean_over_the_labels_that_a_row_has(
    seed: int, weights: list[float] | None
) -> None:
    logits, y = draw_inputs("multilabel", 6, seed)
    pos_weight = None if weights is None else torch.tensor(weights).double()
    expected = torch.zeros(6).double()
    for i, (row, labels) in enumerate(zip(logits, y, strict=True)):
        seen = ~labels.isnan()
        if seen.any():
            weight = None if pos_weight is None else pos_weight[seen]
            expected[i] = functional.binary_cross_entropy_with_logits(
                row[seen], labels[seen], pos_weight=weight
            )
    torch.testing.assert_close(multilabel_loss(logits, y, pos_weight), expected)


def test_a_missing_label_has_no_loss_and_no_gradient() -> None:
    y = torch.tensor([[1, NAN], [NAN, NAN]], dtype=torch.float64)
    logits = torch.tensor([[0.0, 3], [2, -800]], dtype=torch.float64)
    expected = torch.tensor([np.log(2), 0], dtype=torch.float64)
    torch.testing.assert_close(multilabel_loss(logits, y), expected)
    assert gradient(multilabel_loss, logits, y).tolist() == [[-0.5, 0], [0, 0]]


def test_soft_labels_are_mixed() -> None:
    logits = torch.tensor([[0.3, -2.0]], dtype=torch.float64)
    ones, zeros = torch.ones_like(logits), torch.zeros_like(logits)
    mixed = 0.9 * multilabel_loss(logits, ones) + 0.1 * multilabel_loss(logits, zeros)
    torch.testing.assert_close(multilabel_loss(logits, 0.9 * ones), mixed)


def test_huber_is_quadratic_up_to_delta_and_linear_beyond() -> None:
    outputs = torch.tensor([[0.5, 0, 0], [0, 3, 0], [0, 0, -3]], dtype=torch.float64)
    targets = torch.zeros_like(outputs)
    assert (3 * huber_loss(outputs, targets)).tolist() == pytest.approx([0.125, 2.5, 2.5])
    wide = 3 * huber_loss(outputs, targets, delta=2.0)
    assert wide.tolist() == pytest.approx([0.125, 4, 4])
    assert huber_loss(targets, outputs).tolist() == huber_loss(outputs, targets).tolist()


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_are_those_of_finite_differences(name: str) -> None:
    outputs, y = draw_inputs(name)
    assert torch.autograd.gradcheck(lambda z: LOSSES[name](z, y), outputs.requires_grad_())


@pytest.mark.parametrize("name", ["corn", "coral", "multilabel"])
def test_extreme_logits_have_finite_losses_and_gradients(name: str) -> None:
    outputs, y = draw_inputs(name)
    for dtype in (torch.float64, torch.float32):
        logits = (1e4 * outputs).to(dtype)
        assert LOSSES[name](logits, y).isfinite().all()
        assert LOSSES[name](logits, y).max() > 1_000
        assert gradient(LOSSES[name], logits, y).isfinite().all()


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(name: str, dtype: torch.dtype) -> None:
    outputs, y = draw_inputs(name)
    half = outputs.to(dtype)
    expected = LOSSES[name](half.float(), y)
    with torch.autocast("cpu", torch.bfloat16):
        found = LOSSES[name](half, y)
        slope = gradient(LOSSES[name], half, y)
    assert found.dtype == torch.float32
    assert torch.equal(found, expected)
    assert slope.dtype == dtype
    assert torch.equal(slope, gradient(LOSSES[name], half.float(), y).to(dtype))


@pytest.mark.parametrize("name", LOSSES)
def test_autocast_leaves_full_precision_as_it_is(name: str) -> None:
    outputs, y = draw_inputs(name)
    for full in (outputs, outputs.float()):
        with torch.autocast("cpu", torch.bfloat16):
            found = LOSSES[name](full, y)
        assert found.dtype == full.dtype
        assert torch.equal(found, LOSSES[name](full, y))


@pytest.mark.parametrize("name", ["corn", "coral"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int32])
def test_levels_may_be_of_any_type(name: str, dtype: torch.dtype) -> None:
    outputs, y = draw_inputs(name)
    assert torch.equal(LOSSES[name](outputs, y.to(dtype)), LOSSES[name](outputs, y))


@pytest.mark.parametrize("name", LOSSES)
def test_losses_never_look_at_their_data(name: str) -> None:
    # a tensor of the meta device has no data: .item() and "if tensor" raise on it
    outputs, y = (values.to("meta") for values in draw_inputs(name))
    found = LOSSES[name](outputs, y)
    assert found.shape == (() if name in ("corn", "coral") else (6,))
    assert gradient(LOSSES[name], outputs, y).shape == (6, 4)


@pytest.mark.gpu
@pytest.mark.parametrize("name", LOSSES)
def test_a_cuda_graph_holds_a_loss_and_its_gradient(name: str) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    outputs, y = (values.cuda() for values in draw_inputs(name))
    gradient(LOSSES[name], outputs, y)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found, slope = LOSSES[name](outputs, y), gradient(LOSSES[name], outputs, y)
    for values, others in zip((outputs, y), draw_inputs(name, seed=1), strict=True):
        values.copy_(others)
    graph.replay()
    torch.testing.assert_close(
        found.cpu(), LOSSES[name](*draw_inputs(name, seed=1)), equal_nan=True
    )
    torch.testing.assert_close(slope.cpu(), gradient(LOSSES[name], *draw_inputs(name, seed=1)))


def test_the_module_imports_without_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; import sacmil.tasks.losses"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
