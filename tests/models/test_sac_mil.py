"""The paper's parts against their definitions, and the whole against what it promises."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from exhaustive import choose_cases

import sacmil.models.sac_mil as module
from sacmil import create_model
from sacmil.errors import OptionError
from sacmil.models.sac_mil import PROPE, shift, unshift

# --- shift ---------------------------------------------------------------------------------------

CRITICAL = [1, 2, 3, 15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 256, 257, 4095, 4096, 4097, 4999]
LENGTHS = sorted({*CRITICAL, *np.random.default_rng(0).integers(1, 5000, 12).tolist()})


def by_the_paper(x: torch.Tensor, k: int, level: int) -> torch.Tensor:
    """The appendix's pseudo-code with its missing first step: regions first, then rolls."""
    length, dim = x.shape
    region = k ** (level + 1)
    rings = x.reshape(-1, region, dim) if length >= region else x[None]
    folds = [fold.roll(f * k**level, dims=-2) for f, fold in enumerate(rings.chunk(k, dim=-1))]
    return torch.cat(folds, dim=-1).reshape(length, dim)


def check_bijection(length: int, k: int, tail: str) -> None:
    """No two values are equal, so only a bijection has a way back."""
    x = torch.arange(length * k).reshape(length, k)
    for level in range(3):
        moved = shift(x, k, level, tail)
        assert torch.equal(moved % k, x % k), "a value has left its channel"
        assert torch.equal(unshift(moved, k, level, tail), x)


@pytest.mark.parametrize("tail", ["absorb", "split"])
@pytest.mark.parametrize("k", [2, 4, 16, 64])
def test_unshift_undoes_shift_and_both_only_permute(k: int, tail: str) -> None:
    for length in LENGTHS:
        check_bijection(length, k, tail)


@pytest.mark.slow
@pytest.mark.parametrize("thousand", range(5))
@pytest.mark.parametrize("k", [2, 4, 16, 64])
def test_unshift_undoes_shift_at_every_length(k: int, thousand: int) -> None:
    for length in choose_cases(range(1000 * thousand + 1, 1000 * thousand + 1001), step=29):
        check_bijection(length, k, "absorb")


@pytest.mark.parametrize("tail", ["absorb", "split"])
@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("k", [2, 4, 16])
def test_shift_is_the_papers_roll_where_regions_fit(k: int, level: int, tail: str) -> None:
    region = k ** (level + 1)
    for length in {region, 2 * region, 3 * region, max(1, region - 1), max(1, region // 2), 1}:
        x = torch.randn(length, 2 * k)
        assert torch.equal(shift(x, k, level, tail), by_the_paper(x, k, level))


@pytest.mark.parametrize(("k", "level"), [(64, 8), (8, 18), (2, 59)])
def test_the_deepest_shift_there_may_be_is_exact(k: int, level: int) -> None:
    x = torch.randn(130, 2 * k)
    folds = [fold.roll(f * k**level % 130, dims=0) for f, fold in enumerate(x.chunk(k, dim=1))]
    assert torch.cat(folds, dim=1).equal(shift(x, k, level))


def test_a_fold_moves_forward_by_its_number_times_the_scale() -> None:
    x = torch.zeros(64, 4)
    x[5] = 1
    moved = shift(x, k=4, level=1)
    # Ring 0..15, scale 4: fold f of instance 5 stands at (5 + 4 f) mod 16.
    assert [moved[:, fold].argmax().item() for fold in range(4)] == [5, 9, 13, 1]


def test_the_last_ring_absorbs_the_remainder_and_split_keeps_it_apart() -> None:
    x = torch.arange(10.0)[:, None].expand(10, 4).contiguous()
    absorbed, split = (shift(x, k=4, level=0, tail=tail)[:, 1] for tail in ("absorb", "split"))
    assert absorbed.tolist() == [3, 0, 1, 2, 9, 4, 5, 6, 7, 8]
    assert split.tolist() == [3, 0, 1, 2, 7, 4, 5, 6, 9, 8]


@pytest.mark.parametrize(("dim", "k"), [(10, 4), (7, 7), (65, 64), (100, 64)])
def test_uneven_folds_are_those_of_tensor_split(dim: int, k: int) -> None:
    x = torch.randn(3 * k, dim)
    parts = [
        torch.cat([ring.roll(f, dims=0) for ring in fold.split(k)])
        for f, fold in enumerate(x.tensor_split(k, dim=1))
    ]
    assert torch.equal(shift(x, k, level=0), torch.cat(parts, dim=1))
    assert torch.equal(unshift(shift(x, k, level=0), k, level=0), x)


# --- PROPE ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1, 512])
def test_prope_equals_the_golden_numbers(golden, scale: int) -> None:
    file = golden("pe_prope")
    h, coords = torch.from_numpy(file["x"]), torch.from_numpy(file["in/coords"])
    expected = torch.from_numpy(file[f"out/out_interleaved_{scale}"])
    prope, rows = PROPE(h.shape[1], scale), file.get("rows", slice(None))
    torch.testing.assert_close(prope(h.double(), coords)[rows], expected, atol=1e-12, rtol=0)
    torch.testing.assert_close(prope(h, coords).double()[rows], expected, atol=2e-6, rtol=0)


def places(n: int = 200) -> torch.Tensor:
    return torch.randint(0, 300, (n, 2)).double()


def test_prope_keeps_the_norm_of_every_pair() -> None:
    h = torch.randn(200, 32, dtype=torch.float64)
    turned = PROPE(32, 512.0)(h, places())
    norms = [values.reshape(200, 16, 2).norm(dim=2) for values in (h, turned)]
    torch.testing.assert_close(*norms)
    assert (turned - h).abs().max() > 0.5


@pytest.mark.parametrize("move", [(1000.0, 0.0), (-37.0, 512.5)])
@pytest.mark.parametrize("stretch", [(1.0, 1.0), (2.0, 2.0), (256.0, 0.5)])
def test_moving_and_stretching_a_slide_changes_nothing(move, stretch) -> None:
    h, coords = torch.randn(200, 32, dtype=torch.float64), places()
    other = coords * torch.tensor(stretch) + torch.tensor(move)
    prope = PROPE(32, 512.0)
    torch.testing.assert_close(prope(h, other), prope(h, coords), atol=1e-9, rtol=0)


@pytest.mark.parametrize("axis", [0, 1])
def test_a_constant_axis_counts_as_zero(axis: int) -> None:
    h, coords = torch.randn(200, 32, dtype=torch.float64), places()
    coords[:, axis] = 7.0
    angles = PROPE(32, 512.0).angles(coords)
    assert angles.isfinite().all()
    # alpha is 0 along x and a quarter turn along y, except at the origin itself.
    beyond = coords[:, 1 - axis] > coords[:, 1 - axis].min()
    slowest = PROPE(32, 0.0).angles(coords)[beyond, -1]
    quarter = torch.full_like(slowest, (axis == 0) * np.pi / 2)
    torch.testing.assert_close(slowest, quarter)
    assert PROPE(32, 512.0)(h[:1], coords[:1]).equal(h[:1]), "a single instance is its own origin"


def test_prope_in_half_precision_is_as_exact_as_its_input() -> None:
    h, coords = torch.randn(200, 32), places()
    exact = PROPE(32, 512.0)(h.double(), coords)
    rough = PROPE(32, 512.0)(h.bfloat16(), coords)
    assert rough.dtype == torch.bfloat16
    torch.testing.assert_close(rough.double(), exact, atol=0.06, rtol=0)


# --- the model -----------------------------------------------------------------------------------


def test_parameters_are_as_many_as_the_definition_says() -> None:
    def count(**options: object) -> int:
        model = create_model("sac_mil", in_dim=1024, num_classes=2, **options)
        return sum(parameter.numel() for parameter in model.parameters())

    assert count() == 2_104_834
    assert count(mlp="mlp") == 3_680_770


def plain_forward(model, features: torch.Tensor, coords: torch.Tensor):
    """SAC-MIL written out with loops over rolls, in arranged order, for a length of whole rings."""
    order = torch.from_numpy(model.plan(coords.numpy())["order"])
    h = model.position(torch.relu(model.project[0](features[order])), coords[order])
    for level, block in enumerate(model.blocks):
        y = torch.nn.functional.layer_norm(h, h.shape[1:], block.norm.weight, block.norm.bias)
        y = torch.nn.functional.gelu(block.w1(by_the_paper(y, 4, level)))
        back = torch.empty_like(y)
        marks = torch.arange(y.numel(), dtype=torch.float64).reshape(y.shape)
        back.view(-1)[by_the_paper(marks, 4, level).long().view(-1)] = y.reshape(-1)
        h = h + block.w2(back)
    return model.head(h.mean(0)), h.norm(dim=1), order


def test_the_model_is_its_definition_written_out(make_bag) -> None:
    bag = make_bag(64)
    model = create_model("sac_mil", in_dim=16, num_classes=3, dim=32, k=4).double()
    features = torch.from_numpy(bag.features).double()
    coords = torch.from_numpy(bag.patch_coords)
    output = model(features, coords)
    logits, norms, order = plain_forward(model, features, coords)
    torch.testing.assert_close(output.logits, logits)
    torch.testing.assert_close(output.scores[order], norms)


@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("mlp", ["linear", "mlp"])
def test_a_block_adds_to_its_input_exactly_if_residual(mlp: str, residual: bool) -> None:  # noqa: FBT001
    block = module.SACBlock(32, 4, 1, mlp, "absorb", residual=residual)
    last = block.w2 if mlp == "linear" else block.w2[-1]
    torch.nn.init.zeros_(last.weight)
    torch.nn.init.zeros_(last.bias)
    x = torch.randn(50, 32)
    assert block(x).equal(x if residual else torch.zeros_like(x))


@pytest.mark.parametrize("pool", ["mean", "max", "attention"])
@pytest.mark.parametrize("centers", ["fps", "fps_free", "peel", "kd"])
@pytest.mark.parametrize("region_order", ["fps", "hilbert"])
def test_the_order_of_rows_changes_nothing(make_bag, pool, centers, region_order) -> None:
    bag = make_bag(700)
    options = {"pool": pool, "centers": centers, "region_order": region_order}
    model = create_model("sac_mil", in_dim=16, num_classes=2, dim=64, k=16, **options).eval()
    features, coords = torch.from_numpy(bag.features), torch.from_numpy(bag.patch_coords)
    rows = torch.randperm(700)
    with torch.no_grad():
        output, shuffled = model(features, coords), model(features[rows], coords[rows])
    torch.testing.assert_close(shuffled.logits, output.logits, atol=1e-5, rtol=0)
    torch.testing.assert_close(shuffled.scores, output.scores[rows], atol=1e-5, rtol=0)


PLACES = ["none", "prope", "sinusoidal", "alibi", "rope", "rope2d", "peg", "ppeg", "soft_peg"]
MIXERS = ["sac", "chordmixer", "cyclemlp", "nystrom", "attention"]
PAIRS = [(place, "sac") for place in PLACES] + [
    (place, mixer) for mixer in MIXERS[1:] for place in ("prope", "alibi")
]


def test_the_lists_here_are_those_of_the_model() -> None:
    assert set(PLACES) == {"prope", *module.POSITIONS}
    assert set(MIXERS) == {"sac", *module.CORRELATION_BLOCKS}


@pytest.mark.parametrize(("position", "correlation"), PAIRS)
@pytest.mark.parametrize("instances", [1, 2, 7, 65])
def test_every_rival_answers_in_any_order_and_learns(
    make_bag, instances: int, position: str, correlation: str
) -> None:
    bag = make_bag(instances)
    options = {"position": position, "correlation": correlation}
    model = create_model("sac_mil", in_dim=16, num_classes=2, dim=32, k=4, **options)
    features, coords = torch.from_numpy(bag.features), torch.from_numpy(bag.patch_coords)
    rows = torch.randperm(instances)
    output, shuffled = model(features, coords), model(features[rows], coords[rows])
    torch.testing.assert_close(shuffled.logits, output.logits, atol=1e-5, rtol=0)
    torch.testing.assert_close(shuffled.scores, output.scores[rows], atol=1e-5, rtol=0)
    (output.logits[0] * 3 + output.logits[1]).backward()
    assert [n for n, p in model.named_parameters() if not p.grad.isfinite().all()] == []
    if instances > 2:
        assert [name for name, p in model.named_parameters() if not p.grad.any()] == []


@pytest.mark.parametrize("correlation", MIXERS)
def test_alibi_changes_the_answer_of_every_correlation(make_bag, correlation: str) -> None:
    bag = make_bag(65)
    answers = []
    for position in ("none", "alibi"):
        torch.manual_seed(0)
        options = {"position": position, "correlation": correlation}
        model = create_model("sac_mil", in_dim=16, num_classes=2, dim=32, k=4, **options)
        answers.append(model(*as_tensors(model, bag)).logits)
    assert not torch.allclose(*answers)


def slow_where_it_is(place: str, mixer: str) -> object:
    """The convolutions make large graphs; the others' parts are exported by other pairs too."""
    quick = (place, mixer) == ("rope2d", "sac")
    marks = [] if quick else [pytest.mark.slow]
    return pytest.param(place, mixer, marks=marks)


@pytest.mark.parametrize(
    ("position", "correlation"),
    [slow_where_it_is(*pair) for pair in PAIRS if pair[0] not in ("none", "prope")]
    + [slow_where_it_is("none", mixer) for mixer in MIXERS[1:]],
)
def test_one_export_of_every_rival_serves_all_lengths(
    make_bag, position: str, correlation: str
) -> None:
    options = {"position": position, "correlation": correlation, "depth": 1}
    model = create_model("sac_mil", in_dim=16, num_classes=2, dim=32, k=4, **options).eval()
    # A torch program of Nystrom attention needs more instances than landmarks; its graph in ONNX,
    # which is what users get, does not: see tests/deploy.
    fewest = 17 if correlation == "nystrom" else 1
    n = torch.export.Dim("n", min=fewest, max=2**19)
    shapes = ({0: n}, {0: n}, {"order": {0: n}})
    program = torch.export.export(model, as_tensors(model, make_bag(300)), dynamic_shapes=shapes)
    exported = program.module()
    for instances in (fewest, *(i for i in (2, 7, 16, 18, 49, 65, 257) if i > fewest)):
        inputs = as_tensors(model, make_bag(instances))
        with torch.no_grad():
            found, expected = exported(*inputs).logits, model(*inputs).logits
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("instances", [1, 5, 300])
def test_every_precision_gives_the_same_answer(make_bag, dtype, instances: int) -> None:
    bag = make_bag(instances)
    model = create_model("sac_mil", in_dim=16, num_classes=2, dim=64, k=16).double()
    features, coords = torch.from_numpy(bag.features), torch.from_numpy(bag.patch_coords)
    exact = model(features.double(), coords).logits
    rough = model.to(dtype)(features.to(dtype), coords)
    assert rough.logits.dtype == dtype
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 0.05, torch.float64: 1e-12}[dtype]
    torch.testing.assert_close(rough.logits.double(), exact, atol=tolerance, rtol=tolerance)


def as_tensors(model, bag):
    coords = torch.from_numpy(bag.patch_coords)
    plan = {key: torch.from_numpy(value) for key, value in model.plan(bag.patch_coords).items()}
    return torch.from_numpy(bag.features), coords, plan


# Rings of 4 and 16 instances: lengths within one, whole, and with a remainder.
SHORT = {"in_dim": 16, "num_classes": 2, "k": 4, "depth": 2}


@pytest.mark.parametrize(
    "dim",
    [
        pytest.param(16, id="whole folds", marks=pytest.mark.slow),
        pytest.param(18, id="uneven folds"),
    ],
)
def test_one_compilation_serves_all_lengths(make_bag, dim: int) -> None:
    compilations = []

    def counting(graph, inputs):
        compilations.append(graph)
        return graph.forward

    model = create_model("sac_mil", **SHORT, dim=dim).eval()
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=counting, dynamic=True, fullgraph=True)
    for instances in (30, 3, 4, 15, 16, 17, 257):
        inputs = as_tensors(model, make_bag(instances))
        with torch.no_grad():
            torch.testing.assert_close(compiled(*inputs).logits, model(*inputs).logits)
    assert len(compilations) == 1


@pytest.mark.parametrize("tail", ["absorb", pytest.param("split", marks=pytest.mark.slow)])
def test_one_export_serves_all_lengths(make_bag, tail: str) -> None:
    model = create_model("sac_mil", **SHORT, dim=16, tail=tail).eval()
    n = torch.export.Dim("n", min=1, max=2**19)
    shapes = ({0: n}, {0: n}, {"order": {0: n}})
    program = torch.export.export(model, as_tensors(model, make_bag(300)), dynamic_shapes=shapes)
    exported = program.module()
    for instances in (1, 2, 3, 4, 5, 15, 16, 17, 33, 257):
        inputs = as_tensors(model, make_bag(instances))
        with torch.no_grad():
            torch.testing.assert_close(exported(*inputs).logits, model(*inputs).logits)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"position": "propp"}, "did you mean 'prope'"),
        ({"correlation": "x"}, "known are: attention, chordmixer, cyclemlp, nystrom, sac"),
        ({"centers": "peal"}, "did you mean 'peel'"),
        ({"region_order": "hilbrt"}, "did you mean 'hilbert'"),
        ({"pool": "xyz"}, "known are: attention, even, max, mean"),
        ({"mlp": "lin"}, "linear"),
        ({"tail": "absorbed"}, "did you mean 'absorb'"),
        ({"k": 1}, "at least 2"),
        ({"k": 2.5}, "whole number"),
        ({"dim": 32, "k": 64}, "k <= dim"),
        ({"dim": 65, "k": 5}, "even dim"),
        ({"dim": 66, "k": 5, "position": "rope2d"}, "multiple of 4"),
        ({"depth": 10}, "2^62"),
        ({"scale": "512"}, "expected a number"),
        ({"scale": float("nan")}, "expected a number"),
        ({"residual": "no"}, "True or False"),
    ],
)
def test_a_wrong_option_says_what_would_be_right(options: dict, words: str) -> None:
    with pytest.raises(OptionError) as error:
        create_model("sac_mil", in_dim=16, num_classes=2, **options)
    assert words in str(error.value)


def test_the_paper_is_one_short_file() -> None:
    assert len(Path(module.__file__).read_text().splitlines()) < 200


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit.*:DeprecationWarning")  # torch's own, compiling
@pytest.mark.skipif(shutil.which("c++") is None, reason="torch.compile needs a C++ compiler")
def test_torchs_own_compiler_takes_every_length(make_bag) -> None:
    """It compiles a second time for sums of more than 4,096 terms, which it adds more carefully."""
    model = create_model("sac_mil", in_dim=16, num_classes=2, dim=64, k=16).eval()
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(model, dynamic=True, fullgraph=True)
    for instances in (300, 7, 255, 4096, 4097, 5000):
        inputs = as_tensors(model, make_bag(instances))
        with torch.no_grad():
            answer = compiled(*inputs)
            torch.testing.assert_close(answer.logits, model(*inputs).logits, atol=1e-5, rtol=1e-4)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 2
