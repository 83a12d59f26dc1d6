"""A cache of the few open slides used last; for one thread."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from sacmil.viewer.allowed_paths import AllowedPath
from sacmil.viewer.deep_zoom import DeepZoom
from sacmil.viewer.open_slide import open_slide_with_limits

MAX_OPEN = 4


def _open_deep_zoom(allowed_path: AllowedPath) -> DeepZoom:
    slide = open_slide_with_limits(allowed_path)
    try:
        return DeepZoom(slide)
    except BaseException:
        slide.close()
        raise


class SlideCache:
    """Opens slides, and closes the least recently used.

    Args:
        max_open: how many slides are open at a time.
        opener: opens the slide at a path.
    """

    def __init__(
        self, max_open: int = MAX_OPEN, opener: Callable[[AllowedPath], DeepZoom] = _open_deep_zoom
    ) -> None:
        self._max_open = max_open
        self._opener = opener
        self._slides: OrderedDict[AllowedPath, DeepZoom] = OrderedDict()

    def get(self, allowed_path: AllowedPath) -> DeepZoom:
        """Return the open slide at a path; a rewritten file is opened again."""
        if allowed_path not in self._slides:
            while len(self._slides) >= self._max_open:
                self._slides.popitem(last=False)[1].close()
            self._slides[allowed_path] = self._opener(allowed_path)
        self._slides.move_to_end(allowed_path)
        return self._slides[allowed_path]

    def drop(self, allowed_path: AllowedPath) -> None:
        """Close a slide, as after a failed read: OpenSlide then fails on every further read."""
        found = self._slides.pop(allowed_path, None)
        if found is not None:
            found.close()
