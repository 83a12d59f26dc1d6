"""Read outlines of ASAP, the annotation tool of CAMELYON16: one XML file per slide."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from xml.parsers import expat

from sacmil.cohorts.outlines import Outlines, make_outlines
from sacmil.errors import CohortError

EXCLUSIONS = ("_2", "Exclusion", "Exclusions", "normal")
"""Groups that are not tumour: of CAMELYON16, its first release, and CAMELYON17."""

_AREA_TYPES = frozenset({"polygon", "spline", "rectangle"})
"""Types of annotation that enclose something; dots and point sets do not."""


def read_asap(path: str | Path, *, exclusions: Collection[str] = EXCLUSIONS) -> Outlines:
    """Read the outlines of one slide.

    Args:
        path: ASAP's XML.
        exclusions: groups that are subtracted from the others; case is ignored.
    """
    path = Path(path)
    reader = _AsapParser(path)
    try:
        reader.parse(path.read_bytes())
        excluded = {group.lower() for group in exclusions}
        areas = [found for found in reader.annotations if found.kind in _AREA_TYPES]
        return make_outlines(
            [found.to_polygon() for found in areas if found.group not in excluded],
            [found.to_polygon() for found in areas if found.group in excluded],
        )
    except FileNotFoundError:
        raise CohortError(path, ["there is no such file; check the path"]) from None
    except (OSError, expat.ExpatError, ValueError) as error:
        raise CohortError(path, [f"cannot be read as ASAP's XML ({error})"]) from error


class _Annotation:
    def __init__(self, attributes: dict[str, str]) -> None:
        self.kind = attributes.get("Type", "Polygon").lower()
        self.group = attributes.get("PartOfGroup", "").lower()
        self._points: list[tuple[float, float, float]] = []

    def add_point(self, attributes: dict[str, str]) -> None:
        number = attributes.get("Order", str(len(self._points)))
        # ASAP writes numbers with the decimal mark of the user's locale
        texts = (number, attributes["X"], attributes["Y"])
        order, x, y = (float(text.replace(",", ".")) for text in texts)
        self._points.append((order, x, y))

    def to_polygon(self) -> list[tuple[float, float]]:
        return [(x, y) for _, x, y in sorted(self._points, key=lambda point: point[0])]


class _AsapParser:
    """Collects annotations; it expands no entities and fetches no other files."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._root: str | None = None
        self.annotations: list[_Annotation] = []

    def parse(self, raw: bytes) -> None:
        parser = expat.ParserCreate()
        parser.StartElementHandler = self._start_element
        parser.StartDoctypeDeclHandler = self._reject_declaration
        parser.EntityDeclHandler = self._reject_declaration
        parser.Parse(raw, True)  # noqa: FBT003 - expat takes no keywords
        if self._root != "ASAP_Annotations":
            raise ValueError(f"its root is {self._root!r}; expected 'ASAP_Annotations'")

    def _start_element(self, name: str, attributes: dict[str, str]) -> None:
        self._root = self._root or name
        if name == "Annotation":
            self.annotations.append(_Annotation(attributes))
        elif name == "Coordinate":
            try:
                self.annotations[-1].add_point(attributes)
            except (IndexError, KeyError) as error:
                raise ValueError("a Coordinate without X, Y or outside an Annotation") from error

    def _reject_declaration(self, *_: object) -> None:
        raise ValueError("it declares a document type or entities, which ASAP never does")
