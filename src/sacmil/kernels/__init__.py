"""Fast paths: the same numbers in fewer passes, by Triton on NVIDIA GPUs, in pieces on a CPU."""
