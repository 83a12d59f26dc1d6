"""Heatmaps of tile scores as pictures, GeoJSON and tables; needs no model weights."""

from sacmil.heatmap.canvas import Truth, read_truth
from sacmil.heatmap.colors import NORMALIZATIONS, Normalization, normalize_scores
from sacmil.heatmap.pictures import ShownScores, draw_heatmap, find_top_tiles, select_scores
from sacmil.heatmap.score_files import safe_file_name, write_csv, write_geojson
from sacmil.heatmap.score_words import ScoreWords

__all__ = [
    "NORMALIZATIONS",
    "Normalization",
    "ScoreWords",
    "ShownScores",
    "Truth",
    "draw_heatmap",
    "find_top_tiles",
    "normalize_scores",
    "read_truth",
    "safe_file_name",
    "select_scores",
    "write_csv",
    "write_geojson",
]
