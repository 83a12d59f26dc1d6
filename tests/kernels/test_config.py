"""When the fast path is taken."""

from __future__ import annotations

import pytest
import torch

from sacmil.kernels import config
from sacmil.kernels.config import (
    INTERPRET_VARIABLE,
    KERNELS_VARIABLE,
    can_run_kernels,
    use_fast_path,
    use_plain_path,
)

X = torch.zeros(2)


@pytest.fixture
def could(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """As on a machine where kernels run."""
    monkeypatch.setenv(INTERPRET_VARIABLE, "1")
    monkeypatch.delenv(KERNELS_VARIABLE, raising=False)
    monkeypatch.setattr(config, "_has_triton", lambda: True)
    return monkeypatch


def test_a_cpu_takes_the_plain_path() -> None:
    with use_fast_path():
        assert not can_run_kernels(X)


def test_the_fast_path_is_taken_where_it_can_be(could: pytest.MonkeyPatch) -> None:
    assert can_run_kernels(X)
    assert can_run_kernels(X.bfloat16())
    could.setenv(KERNELS_VARIABLE, "off")
    assert not can_run_kernels(X)
    with use_fast_path():
        assert can_run_kernels(X), "what the code says counts more"


def test_without_triton_the_plain_path_is_taken(could: pytest.MonkeyPatch) -> None:
    could.setattr(config, "_has_triton", lambda: False)
    assert not can_run_kernels(X)


def test_where_triton_cannot_compile_the_plain_path_is_taken_with_one_warning(
    could: pytest.MonkeyPatch,
) -> None:
    """A GPU whose machine has no C compiler, as slim containers are."""

    class OnGPU:
        is_cuda, dtype, device = True, torch.float32, torch.device("cuda", 0)

    def no_compiler(*_: object, **__: object) -> None:
        raise RuntimeError("Failed to find C compiler")

    could.setattr(torch.cuda, "device", no_compiler)
    config._can_compile_kernels.cache_clear()
    with pytest.warns(UserWarning, match=r"plain path: .* \(Failed to find C compiler\)"):
        assert not can_run_kernels(OnGPU())  # type: ignore[arg-type]
    assert not can_run_kernels(OnGPU()), "the second time in silence"  # type: ignore[arg-type]
    config._can_compile_kernels.cache_clear()


def test_it_can_be_switched_off(could: pytest.MonkeyPatch) -> None:
    with use_plain_path():
        with use_plain_path():
            assert not can_run_kernels(X)
        assert not can_run_kernels(X), "leaving the inner one must not switch it on again"
        with use_fast_path():
            assert can_run_kernels(X), "the innermost counts"
    assert can_run_kernels(X)


def test_an_error_inside_leaves_it_on(could: pytest.MonkeyPatch) -> None:
    with pytest.raises(ZeroDivisionError), use_plain_path():
        _ = 1 / 0
    assert can_run_kernels(X)


def test_float64_asks_for_more_than_kernels_give(could: pytest.MonkeyPatch) -> None:
    assert not can_run_kernels(X.double())


def test_a_compiler_sees_the_plain_path(could: pytest.MonkeyPatch) -> None:
    could.setattr(torch.compiler, "is_compiling", lambda: True)
    assert not can_run_kernels(X)
