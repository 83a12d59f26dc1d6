"""A sample in one block of memory, so that one copy moves it to a GPU.

Features come first, so that a file's bytes can be read into them; the rest is a hundredth of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sacmil.kernels.cuda_graphs import Field, list_fields, view_fields
from sacmil.models import Sample
from sacmil.models._captured import name_inputs, take_plan


class PackedSample(NamedTuple):
    """A block of bytes and the tensors in it."""

    block: Tensor
    fields: tuple[Field, ...]

    @property
    def features_end(self) -> int:
        """Where the features end."""
        return self.fields[0].stop

    def view_bytes(self, start: int, stop: int) -> memoryview:
        """Return some bytes of a block in main memory, to be written."""
        values: npt.NDArray[np.uint8] = self.block.numpy()
        return memoryview(values[start:stop].data)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors by name; they share the block's memory."""
        return view_fields(self.block, self.fields)

    def unpack(self) -> Sample:
        """Return the sample, whose tensors share the block's memory."""
        return make_sample(self.tensors)

    def copy_to(self, other: PackedSample) -> PackedSample:
        """Copy the bytes to another block of the same size, and return it."""
        other.block.copy_(self.block)
        return other

    def move(self, device: torch.device) -> PackedSample:
        """Return a copy on a device, which does not wait if the memory is pinned."""
        return PackedSample(self.block.to(device, non_blocking=True), self.fields)


def allocate(fields: tuple[Field, ...], *, pinned: bool = False) -> PackedSample:
    """Return a sample whose values are yet to be written.

    Args:
        fields: of the sample.
        pinned: whether a GPU copies from this memory; torch keeps it for the next sample.
    """
    return PackedSample(torch.empty(fields[-1].stop, dtype=torch.uint8, pin_memory=pinned), fields)


def pack(sample: Sample) -> PackedSample:
    """Return a copy of a sample in one block of main memory."""
    tensors = name_tensors(sample)
    packed = allocate(list_fields(tensors))
    for name, tensor in packed.tensors.items():
        tensor.copy_(tensors[name])
    return packed


def name_tensors(sample: Sample) -> dict[str, Tensor]:
    """Return the tensors of a sample by name, features first."""
    plan = {key: torch.as_tensor(value) for key, value in sample.plan.items()}
    return {**name_inputs(sample.features, sample.coords, plan), "target": sample.target}


def make_sample(tensors: Mapping[str, Tensor]) -> Sample:
    """Return the sample of named tensors."""
    return Sample(tensors["features"], tensors["coords"], take_plan(tensors), tensors["target"])
