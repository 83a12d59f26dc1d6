"""Messages arrive as they were sent, their large arrays where the receiver wants them."""

from __future__ import annotations

import os

import numpy as np
import pytest

from sacmil.parallel._child import ByteArray, SharedMemory, receive, send

MODES = ("rb", "wb")


def sent_and_received(message: object, **options: object) -> object:
    inward, outward = (os.fdopen(end, mode) for end, mode in zip(os.pipe(), MODES, strict=True))
    shared = SharedMemory.create()
    if shared is None:
        pytest.skip("the system has no memory without a file")
    with inward, outward:
        send(outward, message, shared)
        received = receive(inward, shared, **options)
    shared.close()
    return received


def test_large_arrays_are_put_in_the_memory_that_is_allocated() -> None:
    made: list[ByteArray] = []

    def allocate(size: int) -> ByteArray:
        made.append(np.full(size, 7, np.uint8))
        return made[-1]

    pixels = np.random.default_rng(0).integers(0, 255, (40, 50, 50, 3), dtype=np.uint8)
    kept = np.arange(40) % 3 > 0
    found = sent_and_received((pixels, kept, "slide"), allocate=allocate)
    assert [len(block) for block in made] == [pixels.nbytes], "small ones need none"
    assert np.shares_memory(found[0], made[0])
    assert np.array_equal(found[0], pixels)
    assert np.array_equal(found[1], kept)
    assert found[0].flags.writeable


def test_what_was_received_outlives_the_next_message() -> None:
    first = sent_and_received(np.ones(10**6, np.uint8))
    sent_and_received(np.zeros(10**6, np.uint8))
    assert first.all()
