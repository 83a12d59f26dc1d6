"""``sacmil encoders``: every encoder in one table, all that is known of one, no torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sacmil.encoders import describe_encoder, list_encoders


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SACMIL_WEIGHTS", str(tmp_path))


def test_every_encoder_is_listed_with_its_width_and_whether_it_is_here(
    sacmil: Callable, tmp_path: Path
) -> None:
    (tmp_path / "virchow.bin").write_bytes(b"weights")
    done = sacmil("encoders")
    assert (done.code, done.err) == (0, "")
    rows = {line.split()[0]: line for line in done.out.splitlines()[1:]}
    assert set(list_encoders()) | {"also"} == set(rows)
    for name in list_encoders():
        assert f" {describe_encoder(name).width} " in rows[name]
    assert " here " in rows["virchow"]
    assert " missing " in rows["uni_v2"]


def test_the_families_are_listed(sacmil: Callable) -> None:
    assert "timm:NAME" in sacmil("encoders").out
    assert "onnx:FILE" in sacmil("encoders").out


def test_an_encoder_is_described_with_its_card_and_how_to_get_its_weights(
    sacmil: Callable, tmp_path: Path
) -> None:
    done = sacmil("encoders", "uni_v2")
    card = describe_encoder("uni_v2")
    assert done.code == 0
    for text in (card.license, card.pooling, "1536", "224 x 224", "0.485, 0.456, 0.406"):
        assert text in done.out
    assert str(tmp_path / "uni_v2.safetensors") in done.out
    assert "hf download MahmoodLab/UNI2-h" in done.out


def test_an_unknown_encoder_ends_with_1_and_a_suggestion(sacmil: Callable) -> None:
    done = sacmil("encoders", "unI_v2")
    assert (done.code, done.out) == (1, "")
    assert "did you mean 'uni_v2'" in done.err


def test_the_list_needs_no_torch(sacmil_process: Callable, tmp_path: Path) -> None:
    before = "import sys\nsys.modules['torch'] = None"
    done = sacmil_process("encoders", before=before, SACMIL_WEIGHTS=str(tmp_path))
    assert (done.code, done.err) == (0, "")
