"""The paper's tables and figures, one file each: a NAME, and ``run(out)`` yielding its files."""
