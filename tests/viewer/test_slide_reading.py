"""Few slides are open, those used last."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from sacmil.errors import SlideError
from sacmil.viewer.allowed_paths import AllowedPath
from sacmil.viewer.slide_reading import SlideCache


class Handle:
    def __init__(self, opened: list[Handle]) -> None:
        self.closed = False
        opened.append(self)

    def close(self) -> None:
        assert not self.closed
        self.closed = True


def make_path(number: int) -> AllowedPath:
    return AllowedPath(Path(f"{number}.tif"), number, 0, 1)


@pytest.fixture
def opened() -> list[Handle]:
    return []


@pytest.mark.parametrize("limit", [1, 3])
def test_a_thousand_slides_are_opened_and_few_are_open(opened, limit: int) -> None:
    slides = SlideCache(limit, lambda _: Handle(opened))
    rng = random.Random(0)
    for _ in range(1000):
        assert not slides.get(make_path(rng.randrange(50))).closed
        assert sum(not handle.closed for handle in opened) <= limit


def test_a_slide_requested_again_is_not_opened_again(opened) -> None:
    slides = SlideCache(3, lambda _: Handle(opened))
    for number in [0, 1, 2] * 10:
        slides.get(make_path(number))
    assert len(opened) == 3


def test_the_slide_not_used_for_longest_goes_first(opened) -> None:
    slides = SlideCache(2, lambda _: Handle(opened))
    for number in (0, 1, 0, 2, 0):
        slides.get(make_path(number))
    assert len(opened) == 3


def test_a_file_written_anew_is_opened_anew(opened) -> None:
    slides = SlideCache(3, lambda _: Handle(opened))
    for changed_ns in (0, 1):
        slides.get(make_path(0)._replace(modified_ns=changed_ns))
    assert len(opened) == 2


def test_a_dropped_slide_is_closed_and_opened_anew(opened) -> None:
    slides = SlideCache(3, lambda _: Handle(opened))
    slides.get(make_path(0))
    slides.drop(make_path(0))
    slides.drop(make_path(0))
    assert opened[0].closed
    assert not slides.get(make_path(0)).closed


def test_a_slide_that_cannot_be_opened_takes_no_room(opened) -> None:
    def reject_odd(path: AllowedPath) -> Handle:
        if path.inode % 2:
            raise SlideError("it is damaged")
        return Handle(opened)

    slides = SlideCache(2, reject_odd)
    slides.get(make_path(0))
    for number in (1, 3, 5):
        with pytest.raises(SlideError, match="it is damaged"):
            slides.get(make_path(number))
    assert not slides.get(make_path(2)).closed
