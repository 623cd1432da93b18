"""The types of the source stay as strict as they are."""

import ast
import re
from collections import Counter
from functools import cache

from tests import ROOT

SOURCE = ROOT / "src" / "neocloud"
STRICT = re.compile(r"# pyright: strict(,|$)")
MOST_CASTS = 40
MOST_ANY_IN_1000_LINES = 3.9


@cache
def _counts() -> Counter[str]:
    """Return the number of lines, of calls of `cast` and of uses of `Any`, without imports and texts."""
    found: Counter[str] = Counter()
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text()
        found["lines"] += text.count("\n")
        if not re.search(r"\b(cast|Any)\b", text):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Name) and node.id in ("cast", "Any"):
                found[node.id] += 1
    return found


def test_services_and_commands_are_checked_strictly() -> None:
    files = [path for part in ("services", "cli") for path in sorted((SOURCE / part).rglob("*.py"))]
    lax = [str(path) for path in files if not STRICT.match(path.read_text().partition("\n")[0])]
    assert files and not lax, f'begin them with "# pyright: strict": {lax}'


def test_there_are_few_casts() -> None:
    casts = _counts()["cast"]
    assert casts <= MOST_CASTS, (
        f"{casts} casts: look at the value at run time (core/json_values.py), or type it"
    )


def test_there_are_few_any() -> None:
    share = 1000 * _counts()["Any"] / _counts()["lines"]
    assert share <= MOST_ANY_IN_1000_LINES, (
        f"{share:.2f} `Any` in 1000 lines: use object, a protocol or a type"
    )
