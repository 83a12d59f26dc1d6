"""Tables of cells and their bags: spatial proteomics, imaging cytometry, cell segmentation."""

from sacmil.cells.features import CellFeatures, measure_neighbor_distance
from sacmil.cells.table import CellColumns, CellTable, read_cell_table

__all__ = [
    "CellColumns",
    "CellFeatures",
    "CellTable",
    "measure_neighbor_distance",
    "read_cell_table",
]
