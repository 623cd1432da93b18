"""Reads changes of limits from YAML, and refuses what is wrong with file, line and reason.

    limits:
      cluster_drains: 0.1
      cool_down: 1h

The names are those of `Limits`. Limits that are tables or sets of checks are not changed by a file.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import fields
from typing import cast

import yaml

from neocloud.fleet.policy.limits import Limits
from neocloud.fleet.policy.policy_file import PolicyError, composed, seconds_of

MOST_CHARACTERS = 1 << 16
MOST = 10**9
CHANGEABLE: Mapping[str, type] = {
    each.name: int if isinstance(each.default, int) or each.default is None else float
    for each in fields(Limits)
    if isinstance(each.default, int | float) or each.default is None
}
"""The names with their types; `rack_tolerates` is a number where it is set."""


def is_limits_file(text: str) -> bool:
    """Return whether a file is one of limits, and not a fault policy."""
    return re.search(r"^limits:", text, re.MULTILINE) is not None


def load_limits(text: str, file: str) -> Mapping[str, int | float]:
    """Return the changes, for `dataclasses.replace`. Raises PolicyError."""
    top = dict(_pairs(composed(text, file, MOST_CHARACTERS), file))
    if [*top] != ["limits"]:
        raise PolicyError(f'{file}, line 1: it has "limits" and nothing else')
    found: dict[str, int | float] = {}
    for name, node in _pairs(top["limits"], file):
        if name in found:
            raise _error(file, node, f"{name} is there twice")
        found[name] = _value(name, node, file)
    return found


def _pairs(node: yaml.Node | None, file: str) -> list[tuple[str, yaml.Node]]:
    if not isinstance(node, yaml.MappingNode):
        raise PolicyError(
            f"{file}, line {node.start_mark.line + 1 if node else 1}: names with values belong here"
        )
    pairs: list[tuple[str, yaml.Node]] = []
    for key, value in cast("list[tuple[yaml.Node, yaml.Node]]", node.value):
        if not isinstance(key, yaml.ScalarNode):
            raise _error(file, key, "a name belongs here")
        pairs.append((str(key.value), value))
    return pairs


def _value(name: str, node: yaml.Node, file: str) -> int | float:
    if name not in CHANGEABLE:
        raise _error(
            file,
            node,
            f"{name[:60]!r} is not a limit that a file can change; see neocloud/fleet/policy/limits.py",
        )
    text = str(node.value) if isinstance(node, yaml.ScalarNode) else ""
    if (seconds := seconds_of(text)) is not None:
        return float(seconds)
    try:
        value = float(text)
    except ValueError:
        raise _error(file, node, f"{name} is a number, or a time such as 30m") from None
    if not math.isfinite(value) or not 0 <= value <= MOST:
        raise _error(file, node, f"{name} is from 0 to {MOST:,}")
    if CHANGEABLE[name] is not int:
        return value
    if value != int(value):
        raise _error(file, node, f"{name} is a whole number")
    return int(value)


def _error(file: str, node: yaml.Node, reason: str) -> PolicyError:
    return PolicyError(f"{file}, line {node.start_mark.line + 1}: {reason}")
