"""Heatmaps of tile scores as pictures, GeoJSON and tables; needs no model weights."""

from sacmil.heatmap.csv_file import write_csv
from sacmil.heatmap.geojson import write_geojson
from sacmil.heatmap.normalization import NORMALIZATIONS, Normalization, normalize_scores
from sacmil.heatmap.overlay import draw_map, draw_overlay
from sacmil.heatmap.pictures import ShownScores, draw_heatmap, select_class_scores, select_scores
from sacmil.heatmap.safe_file_name import safe_file_name
from sacmil.heatmap.top_tiles import draw_top_tiles, find_top_tiles
from sacmil.heatmap.truth import Truth, read_truth

__all__ = [
    "NORMALIZATIONS",
    "Normalization",
    "ShownScores",
    "Truth",
    "draw_heatmap",
    "draw_map",
    "draw_overlay",
    "draw_top_tiles",
    "find_top_tiles",
    "normalize_scores",
    "read_truth",
    "safe_file_name",
    "select_class_scores",
    "select_scores",
    "write_csv",
    "write_geojson",
]
