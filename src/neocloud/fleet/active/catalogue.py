"""The active checks: what each measures and needs, how long it may take, its limits and their sources."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib import resources
from typing import Any

from neocloud.fleet.nodes.events import CheckScope
from neocloud.fleet.policy.actions import Action, Suite

FILE = "catalogue.json"
GOLDEN = "92588e82caf6bce71e9253a2412cb094f79229ef2d509f5e5434369dfdb281e9"
"""Result of `sdc.work`. Where it comes from: the limit of `cpu_sdc`."""


class Better(StrEnum):
    HIGHER = "higher"
    LOWER = "lower"
    EQUAL = "equal"


@dataclass(frozen=True)
class Limit:
    models: tuple[str, ...]
    """Parts of the names of GPUs that it is for; none: for everything."""
    value: float
    source: str
    note: str


@dataclass(frozen=True)
class ActiveCheck:
    name: str
    title: str
    program: str
    """The part that measures it: "cpu", "folder", "gpu", "dcgm", "pair"; "" where this release has none."""
    needs: tuple[str, ...]
    suites: tuple[Suite, ...]
    seconds: float
    """Deadline."""
    unit: str
    better: Better
    margin: float
    """Share of the median of its cohort by which a node has to be worse."""
    action: Action
    scope: CheckScope
    limits: tuple[Limit, ...]

    def limit(self, device: str) -> Limit | None:
        """Return the limit for a device, whose description has the name of its model."""
        for each in self.limits:
            if not each.models or any(_is_named(model, device) for model in each.models):
                return each
        return None

    def is_within(self, value: float, limit: Limit) -> bool:
        match self.better:
            case Better.HIGHER:
                return value >= limit.value
            case Better.LOWER:
                return value <= limit.value
            case Better.EQUAL:
                return value == limit.value


def _is_named(model: str, device: str) -> bool:
    """Return whether the model is a word of the description: B200 is not GB200."""
    return re.search(rf"(?<![A-Z0-9]){re.escape(model)}(?![0-9])", device, re.IGNORECASE) is not None


@cache
def catalogue() -> Sequence[ActiveCheck]:
    return tuple(_check(each) for each in _data()["checks"])


def version() -> str:
    return str(_data()["version"])


def find(name: str) -> ActiveCheck | None:
    return next((each for each in catalogue() if each.name == name), None)


def named(name: str) -> ActiveCheck:
    """Return a check. Raises KeyError."""
    if (found := find(name)) is None:
        raise KeyError(name)
    return found


def suite_checks(suite: Suite) -> Sequence[ActiveCheck]:
    return [each for each in catalogue() if suite in each.suites]


@cache
def _data() -> dict[str, Any]:
    return json.loads(resources.files("neocloud.fleet.active").joinpath(FILE).read_bytes())


def _check(row: dict[str, Any]) -> ActiveCheck:
    return ActiveCheck(
        name=row["name"],
        title=row["title"],
        program=row["program"],
        needs=tuple(row["needs"]),
        suites=tuple(Suite(each) for each in row["suites"]),
        seconds=float(row["seconds"]),
        unit=row["unit"],
        better=Better(row["better"]),
        margin=float(row["margin"]),
        action=Action(row["action"]),
        scope=CheckScope(row["scope"]),
        limits=tuple(
            Limit(tuple(each["models"]), float(each["value"]), each["source"], each["note"])
            for each in row["limits"]
        ),
    )
