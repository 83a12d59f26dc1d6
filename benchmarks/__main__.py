"""``python -m benchmarks``: every benchmark, one after the other."""

from benchmarks import arrange, forward

arrange.main([])
forward.main([])
