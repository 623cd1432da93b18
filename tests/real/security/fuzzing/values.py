"""Values that break programs: texts, numbers and sizes, as Hypothesis strategies."""

import json
from typing import Any

from hypothesis import strategies as st

LONG = (1_000, 100_000, 2_000_000)
"""Lengths of texts and byte strings: beyond a name, beyond a page, beyond a frame; the API takes 8 MiB."""
MANY = (100, 3_000, 50_000)
"""Counts of list items and map entries."""
DEPTHS = (50, 500, 20_000)

TEXTS = (
    "",
    " ",
    "\0",
    "a\0b",
    "\r\nX-Injected: yes",
    "-",
    "--help",
    ".",
    "..",
    "../../../../etc/passwd",
    "/proc/self/environ",
    "%2e%2e%2f",
    "%s%n%x",
    "{0.__class__}",
    "${jndi:x}",
    "$(id)",
    "`id`",
    "'; DROP TABLE resources; --",
    "%",
    "_",
    "*",
    "(a+)+$",
    "\u202eevil",
    "e\u0301" * 40,
    "\N{ZERO WIDTH JOINER}",
    "\ufeff",
    "\uffff",
    "\U0001f4a3",
    "\N{LATIN SMALL LETTER DOTLESS I}",
    "\x7f\x1b[2J",
    "nan",
    "1e999",
    "-1",
    "0x10",
    "١٢",
    "9" * 400,
    "true",
    "null",
    "name eq ''",
    "a.b.c.*",
    "spec.",
    "10.0.0.0/0",
    "::/0",
    "255.255.255.256",
    "http://127.0.0.1:1/",
    "file:///etc/passwd",
    "ssh-ed25519 AAAA\ncommand=x",
)
INTEGERS = (
    0,
    1,
    -1,
    2**7,
    2**15,
    2**31 - 1,
    -(2**31),
    2**31,
    2**32,
    2**53 + 1,
    2**63 - 1,
    -(2**63),
    2**64 - 1,
)
FLOATS = (0.0, -0.0, 1e-308, 1e308, float("inf"), float("-inf"), float("nan"))


def texts(*, well_formed: bool = True) -> st.SearchStrategy[str]:
    """Lone surrogates only where the text need not become UTF-8."""
    free = st.text(st.characters(exclude_categories=("Cs",) if well_formed else ()), max_size=30)
    long = st.builds(str.__mul__, st.sampled_from(("x", "\0", "é", "\U0001f600")), st.sampled_from(LONG))
    return st.one_of(st.sampled_from(TEXTS), free, st.sampled_from(TEXTS), long)


def integers(low: int, high: int) -> st.SearchStrategy[int]:
    known = [number for number in INTEGERS if low <= number <= high]
    return st.one_of(st.sampled_from(known), st.integers(low, high))


def floats() -> st.SearchStrategy[float]:
    return st.one_of(st.sampled_from(FLOATS), st.floats())


def byte_strings() -> st.SearchStrategy[bytes]:
    return st.one_of(st.binary(max_size=40), st.builds(bytes, st.sampled_from(LONG)))


def nested_json() -> st.SearchStrategy[str]:
    """JSON that is deeper than a parser's stack."""
    pairs = st.sampled_from((("[", "]"), ('{"a":', "}"), ('{"spec":', "}"), ("[", "")))
    return st.builds(
        lambda pair, depth: pair[0] * depth + "1" + pair[1] * depth, pairs, st.sampled_from(DEPTHS)
    )


def json_values() -> st.SearchStrategy[Any]:
    """Any JSON value, of odd types, with odd keys; also what only Python's parser takes."""
    leaves = st.one_of(
        st.none(),
        st.booleans(),
        st.sampled_from(INTEGERS),
        floats(),
        texts(well_formed=False),
        st.just(10**400),
    )
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(TEXTS), inner, max_size=3)
        ),
        max_leaves=6,
    )


def json_text(value: Any) -> bytes:
    """With lone surrogates as escapes, NaN and Infinity as words; raises nothing."""
    return json.dumps(value).encode()
