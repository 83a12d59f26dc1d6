"""What is measured is kept, and reported as it was measured."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks import length, length_page
from benchmarks.blocks import renewed

ROW = length.Row(
    "sac_mil", "prediction", 16_384, "bfloat16", 0.25, 0.1, 0.5, "GPU", "torch", "d", "c"
)


def test_the_newest_of_equal_measurements_stays(tmp_path: Path) -> None:
    file = tmp_path / "length.csv"
    peer = replace(ROW, name="transmil", milliseconds=5.0)
    length.write(file, [ROW, peer])
    length.write(file, [replace(ROW, milliseconds=0.125)])
    assert length.read(file) == [replace(ROW, milliseconds=0.125), peer]


def test_a_published_command_has_no_path_of_the_machine(tmp_path: Path) -> None:
    inside = length.ROOT / "benchmarks" / "results" / "length.csv"
    given = [
        "--only",
        "sac_mil, plain",
        "--results",
        str(tmp_path / "a.csv"),
        f"--results={inside}",
    ]
    assert length.describe_command([*given, f"--results={tmp_path}/b.csv"]) == (
        "python -m benchmarks.length --only 'sac_mil, plain' --results a.csv "
        "--results=benchmarks/results/length.csv --results=b.csv"
    )


def test_published_commands_are_as_they_would_be_written() -> None:
    for command in {row.command for row in length.read(length.RESULTS)}:
        assert length.describe_command(shlex.split(command)[3:]) == command


def test_tables_show_the_bound_and_the_peer() -> None:
    rows = [ROW, replace(ROW, name="transmil", milliseconds=5.0)]
    text = length_page.render_tables(rows, "length.png")
    assert "| _bound_ | 0.1 |\n| sac_mil | 0.25 (2.5 x) |" in text
    assert "| _transmil / sac_mil_ | 20.0 x |" in text
    assert "| tiles | 16,384 |\n| --- | --- |\n| sac_mil | 0.50 |" in text
    assert "| GPU | torch | d | `c` |" in text


def test_the_page_has_the_newest_tables() -> None:
    page = length_page.PAGE.read_text(encoding="utf-8")
    tables = length_page.render_tables(length.read(length.RESULTS), "../docs/images/length.png")
    assert renewed(page, lambda _: tables) == page


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
    assert str(tmp_path) not in file.read_text()
    assert [(row.name, row.what) for row in length.read(file)] == [
        ("abmil_gated", "prediction"),
        ("abmil_gated", "step"),
    ]
    assert "x bound" in capsys.readouterr().out


def test_words_outside_a_block_stay() -> None:
    page = "before\n<!-- begin one -->\nold\n<!-- end one -->\nafter\n"
    made = renewed(page, lambda name: f"new {name}")
    assert made == "before\n<!-- begin one -->\n\nnew one\n\n<!-- end one -->\nafter\n"
    assert renewed(made, lambda name: f"new {name}") == made
