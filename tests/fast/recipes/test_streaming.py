"""Large data sets are split and tokenised with only the places of their rows in memory."""

from __future__ import annotations

import tempfile
import tracemalloc
from collections.abc import Callable, Iterator

import numpy
import pytest

import dataset_split
import dataset_tokenize
from chat_messages import Conversation
from conversations import as_line
from tokenized_data import pack

ROWS = 20_000
TEXT = "please block my card " * 50
LARGEST_SHARE = 0.1
"""The most memory, as a share of the rows' own size."""


def conversations() -> Iterator[Conversation]:
    for number in range(ROWS):
        asked = {"role": "user", "content": f"{TEXT}{number}"}
        yield Conversation([asked, {"role": "assistant", "content": f"{number}"}])


def peak_of(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_split_holds_no_rows_in_memory() -> None:
    def work() -> None:
        with tempfile.TemporaryFile() as file:
            lines = dataset_split.SpooledLines(file, map(as_line, conversations()))
            train, test = dataset_split.split(len(lines), 0.9, rand_sort=True, seed=1)
            assert len(dataset_split.without_copies(lines, test, train)) == ROWS // 10

    assert peak_of(work) < LARGEST_SHARE * ROWS * len(TEXT)


def test_tokens_are_in_a_file_until_they_are_written() -> None:
    counts = dataset_tokenize.Counts()

    def examples() -> Iterator[tuple[numpy.ndarray, numpy.ndarray]]:
        for number in range(ROWS):
            ids = numpy.arange(number % 7 + 200, dtype=numpy.int32)
            yield ids, ids + 1

    def work() -> None:
        with tempfile.TemporaryFile() as file:
            fitting = dataset_tokenize.fit(examples(), 203, "truncate", counts)
            spooled = dataset_tokenize.SpooledExamples(file, fitting)
            assert len(spooled) == ROWS and spooled.tokens == sum(spooled.lengths)
            ids, labels = spooled[6]
            assert len(ids) == 203 and list(labels) == [each + 1 for each in ids]
            with pytest.raises(IndexError):
                spooled[ROWS]
            assert sum(1 for _ in pack(spooled, 1024, spooled.lengths)) == ROWS // 5

    assert peak_of(work) < LARGEST_SHARE * 8 * ROWS * 200 + (4 << 20)
    assert counts.truncated == sum(number % 7 > 3 for number in range(ROWS))


def test_conversations_are_encoded_as_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read = 0

    def counted() -> Iterator[Conversation]:
        nonlocal read
        for each in conversations():
            read += 1
            yield each

    monkeypatch.setattr(dataset_tokenize, "_encode", lambda encoder, messages: ([1], [1]))
    encoder: dataset_tokenize.ChatEncoder = None  # type: ignore[assignment]
    encoded = dataset_tokenize.encode_all(encoder, counted(), 1)
    assert next(encoded) == ([1], [1]) and read < 10
