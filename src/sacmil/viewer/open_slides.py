"""Slides that are open: a few, those used last; for one thread."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from sacmil.viewer.confinement import Place
from sacmil.viewer.deep_zoom import DeepZoom
from sacmil.viewer.opening import open_bounded

MOST_OPEN = 4


def _open(place: Place) -> DeepZoom:
    slide = open_bounded(place)
    try:
        return DeepZoom(slide)
    except BaseException:
        slide.close()
        raise


class OpenSlides:
    """Opens slides, and closes those not used for longest.

    Args:
        most_open: how many at a time.
        opener: makes a slide of a place.
    """

    def __init__(
        self, most_open: int = MOST_OPEN, opener: Callable[[Place], DeepZoom] = _open
    ) -> None:
        self._most = most_open
        self._opener = opener
        self._open: OrderedDict[Place, DeepZoom] = OrderedDict()

    def get(self, place: Place) -> DeepZoom:
        """The slide at a place; a file written anew is another place."""
        if place not in self._open:
            while len(self._open) >= self._most:
                self._open.popitem(last=False)[1].close()
            self._open[place] = self._opener(place)
        self._open.move_to_end(place)
        return self._open[place]

    def drop(self, place: Place) -> None:
        """Close a slide, as after a failed read: OpenSlide fails for ever then."""
        found = self._open.pop(place, None)
        if found is not None:
            found.close()
