"""The paper's tables, in one file, and its figures, one file each."""
