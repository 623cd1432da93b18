"""Chunks of any size become batches of a MiB, in two buffers."""

import os
import random

import pytest

from neocloud.object_store.bodies.writer import BATCH_BYTES, Batches


@pytest.mark.parametrize("is_declared", [True, False])
@pytest.mark.parametrize(
    "size", [0, 1, 65_536, 65_537, BATCH_BYTES - 1, BATCH_BYTES, BATCH_BYTES + 1, 4 * BATCH_BYTES + 7]
)
def test_batches_are_the_body(size: int, is_declared: bool) -> None:
    body, chosen = os.urandom(size), random.Random(size)
    batches, found, start = Batches(size if is_declared else None), list[bytes](), 0
    while start < size:
        chunk = memoryview(body)[start : start + chosen.randrange(1, 300_000)]
        start += len(chunk)
        while chunk:
            chunk = chunk[batches.add(chunk) :]
            if batches.is_full:
                found.append(bytes(batches.take()))
    found.append(bytes(batches.take()))
    assert b"".join(found) == body
    assert [len(each) for each in found[:-1]] == [BATCH_BYTES] * (size // BATCH_BYTES)


def test_a_batch_stays_while_the_next_is_filled() -> None:
    batches = Batches(None)
    batches.add(memoryview(b"a" * BATCH_BYTES))
    first = batches.take()
    batches.add(memoryview(b"b" * BATCH_BYTES))
    assert first == b"a" * BATCH_BYTES
    second = batches.take()
    batches.add(memoryview(b"c" * BATCH_BYTES))
    assert second == b"b" * BATCH_BYTES
    assert first == b"c" * BATCH_BYTES, "the memory is used again"
