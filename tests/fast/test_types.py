"""The types of the source stay as strict as they are."""

import ast
import re
import tomllib
from collections import Counter
from functools import cache

from tests import ROOT

LAX = re.compile(r"^# pyright: (basic|standard)", re.MULTILINE)
SOURCE = ROOT / "src" / "neocloud"
MOST_CASTS = 40
MOST_ANY_IN_1000_LINES = 4.0


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
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pyright"]
    lax = [str(path) for path in files if LAX.search(path.read_text())]
    assert "src/neocloud" in settings["strict"] and files and not lax


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
