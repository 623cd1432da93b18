"""Small model or large one: what to ask before choosing. TCO-10."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import yaml


@dataclass(frozen=True)
class Choice:
    question: str
    small_model: str
    large_model: str
    advice: str


@cache
def choices() -> Sequence[Choice]:
    text = files("neocloud.services.billing.tco").joinpath("guide.yaml").read_text(encoding="utf-8")
    return [Choice(**entry) for entry in yaml.safe_load(text)]
