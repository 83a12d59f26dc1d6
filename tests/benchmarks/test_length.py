"""What is measured is kept, and reported as it was measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks import length, length_page
from benchmarks.blocks import renewed

ROW = length.Row("sac_mil", "answer", 16_384, "bfloat16", 0.25, 0.1, 0.5, "GPU", "torch", "d", "c")


def test_the_newest_of_equal_measurements_stays(tmp_path: Path) -> None:
    file = tmp_path / "length.csv"
    peer = replace(ROW, name="transmil", milliseconds=5.0)
    length.write(file, [ROW, peer])
    length.write(file, [replace(ROW, milliseconds=0.125)])
    assert length.read(file) == [replace(ROW, milliseconds=0.125), peer]


def test_tables_say_how_far_the_floor_and_the_peer_are() -> None:
    text = length_page.render_tables([ROW, replace(ROW, name="transmil", milliseconds=5.0)])
    assert "| sac_mil | 0.25 (2.5 x; 0.50) |" in text
    assert "16,384: 20 x" in text
    assert "Measured on GPU, torch, d: `c`." in text


def test_products_are_those_of_the_model() -> None:
    """Twice the weights for each instance, but for the head, which sees one row only."""
    model = length.create_model("sac_mil", in_dim=length.IN_DIM, num_classes=2)
    weights = sum(p.numel() for name, p in model.named_parameters() if name.endswith("weight"))
    norms = 3 * length.DIM
    assert length.products(1) == 2 * (weights - norms - 2 * length.DIM)


def test_without_a_gpu_nothing_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(length.torch.cuda, "is_available", lambda: False)
    length.main(["--results", str(tmp_path / "length.csv")])
    assert "no CUDA device" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_study_can_be_tried_on_a_cpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "length.csv"
    given = ["--device", "cpu", "--precision", "float32", "--lengths", "9", "--only", "mean_pool"]
    with pytest.raises(SystemExit):
        length.main([*given, "--results", str(file)])
    given[-1] = "abmil_gated"
    length.main([*given, "--results", str(file)])
    assert [(row.name, row.what) for row in length.read(file)] == [
        ("abmil_gated", "answer"),
        ("abmil_gated", "step"),
    ]
    assert "x floor" in capsys.readouterr().out


def test_words_outside_a_block_stay() -> None:
    page = "before\n<!-- begin one -->\nold\n<!-- end one -->\nafter\n"
    made = renewed(page, lambda name: f"new {name}")
    assert made == "before\n<!-- begin one -->\n\nnew one\n\n<!-- end one -->\nafter\n"
    assert renewed(made, lambda name: f"new {name}") == made
