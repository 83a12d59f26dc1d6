"""Slide ids from the names in tables and of files."""

from __future__ import annotations

import re

_SLIDE_SUFFIXES = {
    ".svs",
    ".tif",
    ".tiff",
    ".btf",
    ".ndpi",
    ".mrxs",
    ".vms",
    ".vmu",
    ".scn",
    ".bif",
}
_IMAGE_SUFFIXES = {
    ".svslide",
    ".dcm",
    ".czi",
    ".isyntax",
    ".qptiff",
    ".png",
    ".jpg",
    ".jpeg",
    ".bmp",
}
_BAG_SUFFIXES = {".h5", ".hdf5", ".pt", ".pth", ".npy", ".npz", ".zarr"}
SUFFIXES = frozenset(_SLIDE_SUFFIXES | _IMAGE_SUFFIXES | _BAG_SUFFIXES)
"""Removed from the end of a slide's name."""

_BARCODE_PATTERN = re.compile(r"TCGA-(?P<site>[A-Z0-9]{2})-[A-Z0-9]{4}(?![A-Z0-9])", re.IGNORECASE)


class Barcode(str):
    """The patient's prefix of a TCGA barcode: project, tissue source site, number."""

    __slots__ = ()

    @property
    def site(self) -> str:
        """The tissue source site: two letters or digits for a hospital."""
        return self[5:7]


def parse_slide_id(text: str) -> str:
    """Return a slide's id without folders and without the suffixes of slides and bags.

    >>> parse_slide_id("data/TCGA-3C-AALI-01Z-00-DX1.F6E9A5DF.svs")
    'TCGA-3C-AALI-01Z-00-DX1.F6E9A5DF'
    >>> parse_slide_id("007.tif.h5")
    '007'
    """
    if "." not in text and "/" not in text and "\\" not in text:
        return text.strip()
    name = text.strip().replace("\\", "/").rstrip("/").rsplit("/", 1)[-1].strip()
    while (cut := name.rfind(".")) > 0 and name[cut:].lower() in SUFFIXES:
        name = name[:cut].strip()
    return name


def parse_barcode(slide_id: str) -> Barcode | None:
    """Return the patient of a TCGA slide; None for any other name.

    >>> parse_barcode("TCGA-3C-AALI-01Z-00-DX1.F6E9A5DF")
    'TCGA-3C-AALI'
    """
    found = _BARCODE_PATTERN.match(slide_id)
    return Barcode(found[0].upper()) if found else None
