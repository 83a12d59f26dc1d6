"""The paper's tables and figures, one module each: a NAME and ``run(out, request)``."""
