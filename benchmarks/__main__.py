"""``python -m benchmarks``: every benchmark, one after the other."""

from benchmarks import arrange, forward, zoo

arrange.main([])
forward.main([])
zoo.main(["--instances", "1000", "10000"])
