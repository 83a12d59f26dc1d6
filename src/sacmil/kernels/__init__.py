"""Fast paths for NVIDIA GPUs, in Triton: the same numbers as the plain path, fewer passes."""
