"""Drawn slides: what the label may depend on, and that files are what they say."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from scipy import ndimage

from sacmil.cohorts.outlines import compute_covered_share
from sacmil.errors import ConfigError, NoTissueError, SlideError
from sacmil.heatmap import read_truth
from sacmil.slides.readers import open_slide
from sacmil.slides.tissue import find_tissue
from sacmil.synthetic.slides import (
    CLASSES,
    LayoutSettings,
    draw_slide,
    make_cohort,
    make_layout,
    make_slide_cohort,
    write_slide,
)
from sacmil.synthetic.slides.layout import FIELD_SIDE, SlideContents, make_blob, polygon_area
from sacmil.synthetic.slides.painter import SlidePainter
from sacmil.units import MicronsPerPixel

pytest.importorskip("tifffile", reason="pip install 'sacmil[slides]'")

SMALL = LayoutSettings(
    size=(1344, 1344),
    tissue_radius=590,
    clusters=(3, 4),
    cluster_radius=(68, 80),
    glands=(1, 2),
    gland_radius=50,
    fat_radius=120,
    fat_cell=34,
    stroma_cells=(300, 420),
    lymphocytes=(80, 120),
)


def layouts(label: int, count: int = 30, amounts: LayoutSettings | None = None):
    return [make_layout(label, np.random.default_rng(seed), amounts) for seed in range(count)]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    out = tmp_path_factory.mktemp("drawn")
    cohort = make_slide_cohort(4, seed=3, settings=SMALL)
    for slide in cohort:
        write_slide(slide, out / "slides", out / "truth")
    return out, cohort


# --- the label -----------------------------------------------------------------------------------


def test_the_contents_of_a_slide_are_drawn_without_its_label() -> None:
    for one, other in zip(layouts(0), layouts(1), strict=True):
        assert one.contents == other.contents
        for blob in ("tissue", "fat"):
            assert np.array_equal(getattr(one, blob).outline, getattr(other, blob).outline)


def test_the_layout_has_what_the_contents_say() -> None:
    for label in (0, 1):
        for layout in layouts(label):
            areas = [polygon_area(cluster.outline) for cluster in layout.clusters]
            radii = np.sqrt(np.array(areas) / np.pi)
            assert sorted(radii) == pytest.approx(sorted(layout.contents.cluster_radii))
            assert len(layout.glands) == layout.contents.glands


def test_contents_vary_from_slide_to_slide_within_what_was_requested() -> None:
    found = [SlideContents.draw(SMALL, np.random.default_rng(seed)) for seed in range(200)]
    for name, (least, most) in {
        "glands": SMALL.glands,
        "stroma_cells": SMALL.stroma_cells,
        "lymphocytes": SMALL.lymphocytes,
    }.items():
        values = [getattr(contents, name) for contents in found]
        assert least <= min(values) < max(values) <= most
    counts = {len(contents.cluster_radii) for contents in found}
    assert counts == {3, 4}
    radii = [radius for contents in found for radius in contents.cluster_radii]
    assert 68 <= min(radii) < 69
    assert 79 < max(radii) <= 80


def test_the_cells_painted_are_those_of_the_contents() -> None:
    for label in (0, 1):
        random = np.random.default_rng(label)
        layout = make_layout(label, random, SMALL)
        painted = SlidePainter(layout, random).cells
        contents = layout.contents
        assert len(painted["stroma"]) == contents.stroma_cells
        assert len(painted["lymphocyte"]) == contents.lymphocytes // 2 + 2 * (
            contents.lymphocytes // 4
        )
        assert len(painted["tumour"]) == sum(map(SMALL.count_tumor_cells, contents.cluster_radii))


@pytest.mark.parametrize("label", [0, 1])
def test_no_tile_touches_two_clusters_or_a_cluster_and_a_gland(label: int) -> None:
    for layout in layouts(label):
        fields = [
            {(int(x), int(y)) for x, y in blob.outline // FIELD_SIDE}
            for blob in (*layout.clusters, *layout.glands)
        ]
        assert all(len(field) == 1 for field in fields)
        assert len(set.union(*fields)) == len(fields)


@pytest.mark.parametrize("label", [0, 1])
def test_the_tiles_of_clusters_are_wholly_tissue_and_free_of_fat(label: int) -> None:
    for layout in layouts(label, 10):
        corners = np.array(
            [cluster.outline.min(axis=0) // FIELD_SIDE * FIELD_SIDE for cluster in layout.clusters]
        )
        assert compute_covered_share(corners, FIELD_SIDE, (layout.tissue.outline,), ()).min() > 0.97
        assert compute_covered_share(corners, FIELD_SIDE, (layout.fat.outline,), ()).max() < 0.03


def spread(layout) -> float:
    middles = np.array([cluster.center for cluster in layout.clusters])
    return float(np.hypot(*(middles - middles.mean(axis=0)).T).mean())


def test_positions_of_clusters_separate_the_classes_without_exception() -> None:
    gathered, dispersed = ([spread(layout) for layout in layouts(label)] for label in (0, 1))
    assert CLASSES == ("circumscribed", "infiltrative")
    assert max(gathered) < min(dispersed)


def test_labels_are_balanced_and_do_not_follow_the_numbers() -> None:
    labels = [slide.label for slide in make_slide_cohort(40, seed=0)][:40]
    assert sum(labels) == 20
    assert labels != [number % 2 for number in range(40)]
    assert labels != sorted(labels)


# --- pixels and files ----------------------------------------------------------------------------


def test_the_same_seed_draws_the_same_bytes(written, tmp_path) -> None:
    out, cohort = written
    write_slide(cohort[1], tmp_path / "slides", tmp_path / "truth")
    for path in (f"slides/{cohort[1].file_name}", f"truth/{cohort[1].slide_id}.geojson"):
        assert (tmp_path / path).read_bytes() == (out / path).read_bytes()


def test_another_seed_draws_another_slide() -> None:
    one, other = (
        draw_slide(make_layout(0, np.random.default_rng(seed), SMALL), np.random.default_rng(seed))
        for seed in (0, 1)
    )
    assert np.abs(one.astype(int) - other).mean() > 5


def test_a_slide_is_a_pyramid_that_states_its_resolution(written) -> None:
    out, cohort = written
    with open_slide(out / "slides" / cohort[1].file_name) as slide:
        assert slide.size == SMALL.size
        assert slide.mpp == pytest.approx(0.5)
        assert [round(level.downsample) for level in slide.levels] == [1, 2, 4]


def test_clusters_are_purple_stroma_is_pink_and_glass_is_white(written) -> None:
    out, cohort = written
    layout = cohort[1].make_layout()
    with open_slide(out / "slides" / cohort[1].file_name) as slide:
        pixels = slide.read(0, 0, 0, *slide.size).astype(float)
    cluster = np.concatenate(
        [
            pixels[int(y) - 30 : int(y) + 30, int(x) - 30 : int(x) + 30].reshape(-1, 3)
            for x, y in (cluster.center for cluster in layout.clusters)
        ]
    ).mean(axis=0)
    assert pixels[:40, :40].mean() > 235
    tissue = pixels[pixels.min(axis=2) < 215].mean(axis=0)
    assert tissue[0] > tissue[2] > tissue[1], "pink: red above blue above green"
    assert cluster[2] > cluster[0] > cluster[1], "purple: blue above red above green"
    assert cluster.mean() < tissue.mean() - 20


def test_the_truth_in_the_file_is_the_layout(written) -> None:
    out, cohort = written
    outlines = read_truth(out / "truth", cohort[1].slide_id)
    clusters = cohort[1].make_layout().clusters
    assert len(outlines.positive) == len(clusters)
    for polygon, cluster in zip(outlines.positive, clusters, strict=True):
        assert polygon_area(polygon) == pytest.approx(polygon_area(cluster.outline), rel=1e-2)
    whole = json.loads((out / "truth" / f"{cohort[1].slide_id}.geojson").read_text())
    assert all(feature["geometry"]["type"] == "Polygon" for feature in whole["features"])


def tissue_of(out, slide):
    with open_slide(out / "slides" / slide.file_name) as opened:
        return find_tissue(opened, MicronsPerPixel(0.5))


def test_tissue_is_found_where_it_was_drawn(written) -> None:
    out, cohort = written
    found = tissue_of(out, cohort[1])
    drawn = np.pi * SMALL.tissue_radius**2
    assert found.mask.sum() * found.downsample**2 == pytest.approx(drawn, rel=0.12)


def test_a_pen_mark_is_ink_and_not_tissue(tmp_path) -> None:
    out, cohort = tmp_path, make_slide_cohort(4)
    write_slide(cohort[0], out / "slides", out / "truth")
    assert cohort[0].artefact == "pen mark"
    with open_slide(out / "slides" / cohort[0].file_name) as slide:
        pixels = slide.read(0, 0, 0, *slide.size).astype(int)
    green = (pixels[..., 1] > pixels[..., 0] + 30) & (pixels[..., 1] > pixels[..., 2] + 10)
    green = ndimage.binary_opening(green, iterations=3)
    assert green.sum() > 5_000
    found = tissue_of(out, cohort[0])
    rows, columns = (axis / found.downsample for axis in np.nonzero(green))
    inside = found.mask[
        rows.astype(int).clip(max=found.mask.shape[0] - 1),
        columns.astype(int).clip(max=found.mask.shape[1] - 1),
    ]
    assert inside.mean() < 0.1


def test_bare_glass_has_no_tissue_and_no_truth(written) -> None:
    out, cohort = written
    assert cohort[-2].artefact == "no tissue"
    assert read_truth(out / "truth", cohort[-2].slide_id) is None
    with pytest.raises(NoTissueError):
        tissue_of(out, cohort[-2])


def test_a_truncated_file_is_rejected_in_a_sentence(written) -> None:
    out, cohort = written
    assert cohort[-1].artefact == "truncated"
    with pytest.raises(SlideError, match="broken"):
        open_slide(out / "slides" / cohort[-1].file_name)


# --- requests ------------------------------------------------------------------------------------


@pytest.mark.parametrize("slides", [0, 2, 5, -4])
def test_a_cohort_that_cannot_be_balanced_is_rejected(slides: int) -> None:
    with pytest.raises(ConfigError, match="even number"):
        make_slide_cohort(slides)


def test_amounts_that_do_not_fit_are_rejected() -> None:
    with pytest.raises(ConfigError, match="does not fit"):
        LayoutSettings(size=(500, 500))
    crowded = dataclasses.replace(SMALL, glands=(200, 200))
    with pytest.raises(ConfigError, match=r"fields for [34] clusters and 200 glands"):
        make_layout(0, np.random.default_rng(0), crowded)
    fat = dataclasses.replace(SMALL, cluster_radius=(140, 140))
    with pytest.raises(ConfigError, match="does not fit a field"):
        make_layout(0, np.random.default_rng(0), fat)


@pytest.mark.parametrize(
    "amount", [{"glands": (5, 4)}, {"clusters": (0, 3)}, {"lymphocytes": (-1, 3)}]
)
def test_ranges_that_no_slide_can_follow_are_rejected(amount: dict) -> None:
    with pytest.raises(ConfigError, match="expected the smaller number first"):
        LayoutSettings(**amount)


@pytest.mark.parametrize("radius", [20.0, 300.0])
def test_a_blob_has_the_area_of_its_disc(radius: float) -> None:
    blob = make_blob((5, 7), radius, np.random.default_rng(1), unevenness=0.2, stretch=1.7)
    assert polygon_area(blob.outline) == pytest.approx(np.pi * radius**2)


def test_the_table_names_every_slide_once() -> None:
    cohort = make_slide_cohort(12)
    assert len({slide.slide_id for slide in make_cohort(cohort).slides}) == 14
