"""The paper's tables and figures, one file each: a NAME, ``run(out, request)`` yields its files."""
