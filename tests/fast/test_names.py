"""A class name says what the class is: few classes share one, and none has a name that says nothing."""

import re
from collections import defaultdict

from tests import ROOT

SOURCE = ROOT / "src" / "neocloud"
MOST_OF_ONE_NAME = 3
DEFINITION = re.compile(r"^ *class (\w+)[(:]", re.MULTILINE)
SAYS_NOTHING = re.compile(r"_?(Place|Room|Door|Held|Found|Remembered|Wish\w*)")
"""As whole names: `UsageRoom` would say what it is of."""


def _classes() -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        for name in DEFINITION.findall(path.read_text()):
            found[name].append(str(path.relative_to(SOURCE)))
    return found


def test_few_classes_share_a_name() -> None:
    shared = {name: files for name, files in _classes().items() if len(files) > MOST_OF_ONE_NAME}
    assert not shared, f"put the noun before the name: {shared}"


def test_no_class_has_a_name_that_says_nothing() -> None:
    vague = {
        (file, name) for name, files in _classes().items() for file in files if SAYS_NOTHING.fullmatch(name)
    }
    assert not vague, f"name them after what they hold: {vague}"
