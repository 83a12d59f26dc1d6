"""Paint a synthetic slide: stroma, fat, glands and tumour clusters in two stains."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy import ndimage
from scipy.spatial import cKDTree

from sacmil.synthetic.slides import texture
from sacmil.synthetic.slides.layout import Blob, SlideLayout, fill_polygons
from sacmil.synthetic.slides.texture import Floats, Pixels, enlarge_image, make_soft_noise

PixelPositions = npt.NDArray[np.float64]

_MASK_STEP = 8
"""Slide pixels per pixel of the stroma masks."""
_GRAIN_SIDE = 512
"""Side of the repeated pattern of grain: it is not visible, and noise is slow to make."""
_MEMBRANE_WIDTH = 3.2
"""Pixels between two fat cells."""


def draw_slide(layout: SlideLayout, random: np.random.Generator) -> Pixels:
    """Return the slide at level 0, (h, w, 3).

    Args:
        layout: of the slide.
        random: determines everything that the layout does not.
    """
    return SlidePainter(layout, random).to_rgb()


class SlidePainter:
    """Two canvases, one per stain; the constructor paints everything on them.

    Args:
        layout: of the slide.
        random: determines everything that the layout does not.
    """

    def __init__(self, layout: SlideLayout, random: np.random.Generator) -> None:
        self.layout, self.random, self.size = layout, random, layout.settings.size
        self.cells: dict[str, PixelPositions] = {}
        """Positions of nuclei, by kind."""
        self.fibers = texture.make_fibers(random, self.size, width=26)
        self.hematoxylin, self.eosin = self._paint_stroma()
        self._paint_fat()
        for gland in layout.glands:
            self._paint_gland(gland)
        for cluster in layout.clusters:
            self._paint_cluster(cluster)
        self._clear_outside_tissue()
        self._paint_nuclei()

    def to_rgb(self) -> Pixels:
        """Return the slide in the colours of a scanner."""
        return texture.Stain.sample(self.random).to_rgb(self.hematoxylin, self.eosin)

    # Background.

    def _paint_stroma(self) -> tuple[Floats, Floats]:
        """Paint stroma on every second pixel, then enlarge it and add grain."""
        strength = self.fibers.strength
        density = make_soft_noise(self.random, strength.shape[::-1], 130)
        eosin = (0.2 + 0.6 * strength) * (1 + 0.22 * density)
        eosin *= 1 - 0.75 * np.clip((0.27 - strength) * 7, 0, 1)  # pale gaps between bundles
        eosin = enlarge_image(eosin, self.size)
        eosin *= 1 + _repeat_pattern(
            0.16 * make_soft_noise(self.random, (_GRAIN_SIDE, _GRAIN_SIDE), 2.6), eosin.shape
        )
        return enlarge_image(0.05 + 0.05 * density, self.size), eosin

    def _clear_outside_tissue(self) -> None:
        """Remove everything outside the tissue, with a frayed border."""
        step = 4
        inside = fill_polygons([self.layout.tissue.outline], self.size, step).astype(np.float32)
        inside = ndimage.gaussian_filter(inside, 3.0)
        small = (inside.shape[1], inside.shape[0])
        for scale, height in ((22, 0.16), (6, 0.14)):
            inside += height * make_soft_noise(self.random, small, scale)
        cover = np.clip((enlarge_image(inside, self.size) - 0.5) * 9, 0, 1)
        self.hematoxylin *= cover
        self.eosin *= cover

    def _paint_fat(self) -> None:
        """Paint pale cells with thin membranes, on every second pixel."""
        fat, radius = self.layout.fat, self.layout.settings.fat_cell
        rows, columns = fat.compute_window(10, self.size)
        y, x = np.mgrid[rows.start : rows.stop : 2, columns.start : columns.stop : 2]
        origin = np.array([columns.start, rows.start], np.float64)
        extent = (columns.stop - columns.start, rows.stop - rows.start)
        centers = _make_hexagonal_grid(origin - radius, np.add(extent, 2 * radius), 1.9 * radius)
        centers += self.random.normal(0, 0.24 * radius, centers.shape)
        bend = [7 * make_soft_noise(self.random, x.shape[::-1], 14) for _ in range(2)]
        positions = np.stack([(x + bend[0]).ravel(), (y + bend[1]).ravel()], 1)
        near, _ = cKDTree(centers).query(positions, k=3)
        second, third = (near[:, 1:] - near[:, :1]).T  # three cells leave a wedge between them
        membrane = np.clip(1 - second / _MEMBRANE_WIDTH, 0, 1) + np.clip(1 - third / 9, 0, 1)
        membrane = membrane.clip(0, 1).reshape(x.shape).astype(np.float32)
        shape = fill_polygons([fat.outline], extent, 2, (origin[0], origin[1]))[
            : x.shape[0], : x.shape[1]
        ]
        shape = np.pad(shape, [(0, full - part) for full, part in zip(x.shape, shape.shape)])  # noqa: B905
        soft_edge = ndimage.gaussian_filter(shape.astype(np.float32), 4)
        inside = np.clip((soft_edge - 0.5) * 6 + 0.5, 0, 1)
        cover, wall_eosin = enlarge_image(inside, extent), enlarge_image(0.62 * membrane, extent)
        window = (rows, columns)
        self.eosin[window] += cover * (wall_eosin - self.eosin[window])
        self.hematoxylin[window] *= 1 - cover

    # Structures.

    def _compute_depth(self, blob: Blob, window: tuple[slice, slice]) -> Floats:
        """Return the distance inside the outline in pixels, below zero outside."""
        rows, columns = window
        extent = (columns.stop - columns.start, rows.stop - rows.start)
        inside = fill_polygons([blob.outline], extent, 1, (columns.start, rows.start))
        depth = ndimage.distance_transform_edt(inside) - ndimage.distance_transform_edt(~inside)
        return np.asarray(depth, np.float32)

    def _paint_gland(self, gland: Blob) -> None:
        """Paint tall cells around a lumen, with nuclei at their base."""
        window = gland.compute_window(26, self.size)
        depth = self._compute_depth(gland, window)
        height = 0.42 * gland.radius
        grain = 0.12 * make_soft_noise(self.random, depth.shape[::-1], 9)
        inside = np.clip(depth / 2 + 0.5, 0, 1)
        lumen = np.clip((depth - height + 14 * grain) / 3, 0, 1)
        towards_lumen = np.clip(depth / height, 0, 1)
        eosin, hematoxylin = self.eosin[window], self.hematoxylin[window]
        eosin += inside * (0.62 - 0.28 * towards_lumen + grain - eosin)
        hematoxylin += inside * (0.2 - 0.1 * towards_lumen + 0.4 * grain - hematoxylin)
        secretion = 0.1 * np.clip(make_soft_noise(self.random, depth.shape[::-1], 24), 0, 1)
        eosin += lumen * (secretion - eosin)
        hematoxylin *= 1 - lumen
        collar = np.exp(-(((depth + 7) / 5) ** 2)) * (depth < 0)
        eosin += 0.25 * collar
        self._add_cells("gland", *_place_palisade(gland, self.random))

    def _paint_cluster(self, cluster: Blob) -> None:
        """Paint a solid island of large cells, separated from the stroma by occasional clefts."""
        window = cluster.compute_window(26, self.size)
        depth = self._compute_depth(cluster, window)
        size = depth.shape[::-1]
        inside = np.clip(depth / 2.5 + 0.5, 0, 1)
        eosin, hematoxylin = self.eosin[window], self.hematoxylin[window]
        grain = make_soft_noise(self.random, size, 7)
        grain = grain + 0.6 * make_soft_noise(self.random, size, 3.2)
        eosin += inside * (0.52 + 0.1 * grain - eosin)
        hematoxylin += inside * (0.27 + 0.07 * grain - hematoxylin)
        cleft = np.exp(-(((depth + 3.5) / 2.6) ** 2))
        cleft *= np.clip(0.3 + 1.4 * make_soft_noise(self.random, size, 60), 0, 1)
        eosin *= 1 - 0.9 * cleft
        hematoxylin *= 1 - 0.9 * cleft
        collar = np.exp(-(((depth + 16) / 8) ** 2)) * (depth < 0)
        eosin += 0.14 * collar
        self._add_cells("tumour", self._place_cluster_cells(cluster, depth, window))

    def _place_cluster_cells(
        self, cluster: Blob, depth: Floats, window: tuple[slice, slice]
    ) -> PixelPositions:
        """Return as many positions as its size gives, those farthest from the border first."""
        settings = self.layout.settings
        origin = np.array([window[1].start, window[0].start], np.float64)
        spacing = settings.cell_spacing
        positions = _make_hexagonal_grid(origin, depth.shape[::-1], spacing)
        positions += self.random.normal(0, 0.13 * spacing, positions.shape)
        pixels = np.rint(positions - origin).astype(int)
        x, y = np.clip(pixels, 0, np.array(depth.shape[::-1]) - 1).T
        innermost = np.argsort(-depth[y, x], kind="stable")
        return positions[innermost[: settings.count_tumor_cells(cluster.radius)]]

    # Cells.

    def _add_cells(
        self, kind: str, positions: PixelPositions, angles: PixelPositions | None = None
    ) -> None:
        """Store cells until all tissue is painted; each row is x, y, angle (NaN: any)."""
        angles = np.full(len(positions), np.nan) if angles is None else angles
        rows = np.column_stack([positions, angles])
        self.cells[kind] = np.concatenate([self.cells.get(kind, np.empty((0, 3))), rows])

    def _paint_nuclei(self) -> None:
        contents = self.layout.contents
        free = self._find_stroma_positions()
        spindle = self._sample_positions(free, contents.stroma_cells)
        self._add_cells("stroma", spindle, self.fibers.compute_directions(spindle))
        self._add_cells("lymphocyte", self._sample_positions(free, contents.lymphocytes // 2))
        for _ in range(2):  # follicles
            distance = np.hypot(*(free - self.random.choice(free)).T)
            weights = np.exp(-((distance / 60) ** 2)) + 1e-9
            self._add_cells(
                "lymphocyte", self._sample_positions(free, contents.lymphocytes // 4, weights)
            )
        for name, kind in texture.NUCLEUS_KINDS.items():
            stamps = texture.make_stamps(kind)
            positions, angles = self.cells[name][:, :2], self.cells[name][:, 2]
            any_angle = self.random.uniform(0, math.pi, len(angles))
            angles = np.where(np.isnan(angles), any_angle, angles)
            texture.stamp_nuclei(
                self.hematoxylin, self.eosin, stamps, positions, angles, self.random
            )

    def _find_stroma_positions(self) -> PixelPositions:
        """Return the possible positions of stroma cells."""
        layout = self.layout
        others = [blob.outline for blob in (layout.fat, *layout.glands, *layout.clusters)]
        free = fill_polygons([layout.tissue.outline], self.size, _MASK_STEP)
        free = ndimage.binary_erosion(free, iterations=4)
        free &= ~ndimage.binary_dilation(fill_polygons(others, self.size, _MASK_STEP), iterations=2)
        rows, columns = np.nonzero(free)
        return np.asarray(np.stack([columns, rows], axis=1) * _MASK_STEP, np.float64)

    def _sample_positions(
        self, positions: PixelPositions, count: int, weights: PixelPositions | None = None
    ) -> PixelPositions:
        """Sample ``count`` positions, each moved by less than a step."""
        share = None if weights is None else weights / weights.sum()
        rows = self.random.choice(len(positions), count, replace=False, p=share)
        return np.asarray(positions[rows] + self.random.uniform(0, _MASK_STEP, (count, 2)))


def _repeat_pattern(pattern: Floats, shape: tuple[int, ...]) -> Floats:
    times = [-(-length // _GRAIN_SIDE) for length in shape]
    return np.tile(pattern, times)[: shape[0], : shape[1]]


def _make_hexagonal_grid(
    origin: npt.ArrayLike, extent: npt.ArrayLike, spacing: float
) -> PixelPositions:
    """Return the positions of a hexagonal grid over a rectangle."""
    wide, high = np.asarray(extent, np.float64)
    y, x = np.mgrid[0 : high : spacing * math.sqrt(3) / 2, 0:wide:spacing]
    x = x + spacing / 2 * (np.arange(len(x)) % 2)[:, None]
    return np.stack([x.ravel(), y.ravel()], axis=1) + np.asarray(origin, np.float64)


def _place_palisade(
    gland: Blob, random: np.random.Generator, spacing: float = 12.0
) -> tuple[PixelPositions, PixelPositions]:
    """Return positions of nuclei side by side along the outline, and their directions."""
    count = round(2 * math.pi * gland.radius / spacing)
    closed = np.concatenate([gland.outline, gland.outline[:1]])
    path = np.concatenate([[0], np.cumsum(np.hypot(*np.diff(closed, axis=0).T))])
    at = np.linspace(0, path[-1], count, endpoint=False)
    rim = np.stack([np.interp(at, path, closed[:, axis]) for axis in (0, 1)], axis=1)
    inwards = gland.center - rim
    inwards /= np.hypot(*inwards.T)[:, None]
    positions = rim + inwards * random.normal(11, 1.8, count)[:, None]
    return positions, np.arctan2(inwards[:, 1], inwards[:, 0]) % math.pi
