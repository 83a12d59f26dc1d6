"""The paper's figures on effective context, by network."""

from __future__ import annotations

import pytest

from sacmil.reproduce import effective_context
from sacmil.reproduce.effective_context import EffectiveContextRow, count_changed_outputs
from sacmil.reproduce.experiments import ReproduceRequest

PAPER = {
    "SAC": [256, 512, 4096, 16384, 65536],
    "ChordMixer": [93, 130, 299, 470, 697],
    "CycleMLP": [16, 25, 16, 16, 16],
}
FIGURES = [
    pytest.param(name, length, count, marks=[pytest.mark.slow] if length > 10_000 else [])
    for name, counts in PAPER.items()
    for length, count in zip(effective_context.LENGTHS, counts, strict=True)
]


@pytest.mark.parametrize(("name", "length", "count"), FIGURES)
def test_three_layers_change_as_many_outputs_as_in_the_paper(
    name: str, length: int, count: int
) -> None:
    assert count_changed_outputs(name, length)[-1] == count


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "counts"),
    [("SAC", [64, 4096, 10_000]), ("ChordMixer", [15, 107, 479]), ("CycleMLP", [4, 9, 16])],
)
def test_context_grows_with_layers_as_in_the_paper(name: str, counts: list[int]) -> None:
    assert count_changed_outputs(name, 10_000) == counts


@pytest.mark.slow
def test_the_experiment_writes_a_table_and_three_figures(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(effective_context, "LENGTHS", (64, 256))
    monkeypatch.setattr(effective_context, "BAG_LENGTH", 300)
    monkeypatch.setattr(effective_context, "MAX_LAYERS", 4)
    written = list(effective_context.run(tmp_path / "ecl", ReproduceRequest()))
    assert [path.suffix for path in written] == [".csv", ".png", ".png", ".png"]
    assert all(path.stat().st_size > 1000 for path in written[1:])
    header, *lines = written[0].read_text().splitlines()
    assert header == ",".join(EffectiveContextRow._fields)
    assert len(lines) == 2 * 3 + 3 * 4
    assert "ChordMixer,256,3,93" in lines
