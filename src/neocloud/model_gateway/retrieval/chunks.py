"""Split a text into chunks of at most so many tokens, at ends of paragraphs and sentences where possible.

Tokens are estimated without a tokenizer, on the high side, so that chunks fit the embedding model.
"""

import re
from collections import deque
from collections.abc import Iterator

_RUNS = re.compile(r"[A-Za-z]+|[0-9]+|[^\sA-Za-z0-9]")
_PIECES = re.compile(r"\S{1,48}\s{0,4}")
_BLANKS = re.compile(r"[^\S\n]+")
_EMPTY_LINES = re.compile(r"\n\s*\n[\s]*")
_SENTENCE_END = re.compile(r"[.!?:;…。！？]['\")\]]*\s*$")
LEAST_FILLED = 0.6
"""A chunk ends at a paragraph or sentence if that fills at least this share of it."""


def estimated_tokens(text: str) -> int:
    """Return about how many tokens a text has, rather too many."""
    total = 0
    for run in _RUNS.finditer(text):
        length = run.end() - run.start()
        first = text[run.start()]
        if not first.isascii() or not first.isalnum():
            total += 1
        elif first.isdigit():
            total += (length + 1) // 2
        else:
            total += 1 + (length - 1) // 6
    return total


def normalized(text: str) -> str:
    """Return text without runs of blanks, and without what no database can hold."""
    text = text.replace("\x00", " ").replace("\r\n", "\n").replace("\r", "\n")
    text = text.encode("utf-8", "replace").decode()  # lone surrogates
    return _EMPTY_LINES.sub("\n\n", _BLANKS.sub(" ", text)).strip()


def split_text(text: str, max_tokens: int, overlap_tokens: int) -> Iterator[str]:
    """Yield chunks; each begins with about the last `overlap_tokens` of the one before it."""
    window: deque[tuple[str, int]] = deque()
    tokens = old = 0  # tokens in the window, and how many of its first pieces an earlier chunk has
    for match in _PIECES.finditer(normalized(text)):
        cost = max(estimated_tokens(match[0]), 1)
        while window and tokens + cost > max_tokens:
            if old < len(window):
                count = max(_end(window, max_tokens), old + 1)
                yield "".join(window[at][0] for at in range(count)).strip()
                dropped = _overlap_start(window, count, overlap_tokens)
                old = count - dropped
            else:
                dropped, old = 1, old - 1
            tokens -= sum(window.popleft()[1] for _ in range(dropped))
        window.append((match[0], cost))
        tokens += cost
    if old < len(window):
        yield "".join(word for word, _ in window).strip()


def _end(window: deque[tuple[str, int]], max_tokens: int) -> int:
    """Return after how many pieces to end: at the last paragraph, sentence or line that fills enough."""
    filled, best, rank = 0, len(window), 0
    for number, (word, cost) in enumerate(window, 1):
        filled += cost
        if filled < LEAST_FILLED * max_tokens:
            continue
        found = 3 if word.endswith("\n\n") else 2 if _SENTENCE_END.search(word) else 1 if "\n" in word else 0
        if found and found >= rank:
            best, rank = number, found
    return best


def _overlap_start(window: deque[tuple[str, int]], count: int, overlap_tokens: int) -> int:
    """Return which piece the next chunk begins with."""
    start = count
    while start > 1 and window[start - 1][1] <= overlap_tokens:
        start -= 1
        overlap_tokens -= window[start][1]
    return start
