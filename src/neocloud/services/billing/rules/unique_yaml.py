"""YAML in which nothing is said twice: plain YAML silently takes the last of two equal keys."""

from collections.abc import Hashable
from typing import Any

import yaml


class DuplicateKey(yaml.MarkedYAMLError):
    """A mapping has one key twice; the message says in which lines."""


class _UniqueKeys(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        lines: dict[Any, int] = {}
        for key_node, _ in node.value:
            key, line = self.construct_object(key_node, deep=True), key_node.start_mark.line + 1
            if isinstance(key, Hashable) and key in lines:
                raise DuplicateKey(
                    problem=f"{key!r} in line {line} is in line {lines[key]} already; keep one of them"
                )
            if isinstance(key, Hashable):
                lines[key] = line
        return super().construct_mapping(node, deep)


def load_unique(text: str) -> Any:
    """Raises yaml.YAMLError."""
    return yaml.load(text, Loader=_UniqueKeys)  # a SafeLoader  # nosec B506
