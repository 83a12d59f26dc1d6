"""Scores and places to pictures, GeoJSON and tables; reads pixels, never weights."""

from sacmil.heatmap.csv_file import write_csv
from sacmil.heatmap.file_name import file_name
from sacmil.heatmap.geojson import write_geojson
from sacmil.heatmap.normalisation import NORMALISATIONS, Normalisation, normalise
from sacmil.heatmap.overlay import draw_map, draw_overlay
from sacmil.heatmap.pictures import ShownScores, chosen, draw_heatmap, select_scores
from sacmil.heatmap.strip import draw_strip, top_tiles
from sacmil.heatmap.truth import Truth, read_truth

__all__ = [
    "NORMALISATIONS",
    "Normalisation",
    "ShownScores",
    "Truth",
    "chosen",
    "draw_heatmap",
    "draw_map",
    "draw_overlay",
    "draw_strip",
    "file_name",
    "normalise",
    "read_truth",
    "select_scores",
    "top_tiles",
    "write_csv",
    "write_geojson",
]
