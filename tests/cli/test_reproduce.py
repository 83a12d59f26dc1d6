"""``sacmil reproduce``."""

from __future__ import annotations

from click.testing import CliRunner

from sacmil.cli.reproduce import command
from sacmil.experiments import effective_context


def test_reproduce_prints_what_it_wrote(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(effective_context, "run", lambda out: iter([out / "table.csv"]))
    result = CliRunner().invoke(command, ["ecl", "--out", str(tmp_path)])
    assert result.exit_code == 0
    assert result.output.strip() == str(tmp_path / "table.csv")


def test_an_unknown_experiment_is_a_wrong_call() -> None:
    result = CliRunner().invoke(command, ["table9"])
    assert result.exit_code == 2
    assert "ecl" in result.output
