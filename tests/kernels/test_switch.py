"""When the fast path is taken."""

from __future__ import annotations

import pytest
import torch

from sacmil.kernels import switch
from sacmil.kernels.switch import INTERPRET, VARIABLE, fast, fast_path, plain_path

X = torch.zeros(2)


@pytest.fixture
def could(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """As on a machine where kernels run."""
    monkeypatch.setenv(INTERPRET, "1")
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(switch, "_present", lambda: True)
    return monkeypatch


def test_a_cpu_takes_the_plain_path() -> None:
    with fast_path():
        assert not fast(X)


def test_the_fast_path_is_taken_where_it_can_be(could: pytest.MonkeyPatch) -> None:
    assert fast(X)
    assert fast(X.bfloat16())
    could.setenv(VARIABLE, "off")
    assert not fast(X)
    with fast_path():
        assert fast(X), "what the code says counts more"


def test_without_triton_the_plain_path_is_taken(could: pytest.MonkeyPatch) -> None:
    could.setattr(switch, "_present", lambda: False)
    assert not fast(X)


def test_where_triton_cannot_compile_the_plain_path_is_taken_and_said_once(
    could: pytest.MonkeyPatch,
) -> None:
    """A GPU whose machine has no C compiler, as slim containers are."""

    class OnGPU:
        is_cuda, dtype, device = True, torch.float32, torch.device("cuda", 0)

    def no_compiler(*_: object, **__: object) -> None:
        raise RuntimeError("Failed to find C compiler")

    could.setattr(torch.cuda, "device", no_compiler)
    switch._runs.cache_clear()
    with pytest.warns(UserWarning, match=r"plain path: .* \(Failed to find C compiler\)"):
        assert not fast(OnGPU())  # type: ignore[arg-type]
    assert not fast(OnGPU()), "the second time in silence"  # type: ignore[arg-type]
    switch._runs.cache_clear()


def test_it_can_be_switched_off(could: pytest.MonkeyPatch) -> None:
    with plain_path():
        with plain_path():
            assert not fast(X)
        assert not fast(X), "leaving the inner one must not switch it on again"
        with fast_path():
            assert fast(X), "the innermost counts"
    assert fast(X)


def test_an_error_inside_leaves_it_on(could: pytest.MonkeyPatch) -> None:
    with pytest.raises(ZeroDivisionError), plain_path():
        _ = 1 / 0
    assert fast(X)


def test_float64_asks_for_more_than_kernels_give(could: pytest.MonkeyPatch) -> None:
    assert not fast(X.double())


def test_a_compiler_sees_the_plain_path(could: pytest.MonkeyPatch) -> None:
    could.setattr(torch.compiler, "is_compiling", lambda: True)
    assert not fast(X)
