"""The architectures that the model server can load without code of a model's maker, which is never run.

`architectures.txt` is written by `scripts/write-architectures` from the vLLM of the shared root.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

LONGEST_NAME = 100


@cache
def known_architectures() -> frozenset[str]:
    text = Path(__file__).with_name("architectures.txt").read_text(encoding="utf-8")
    return frozenset(line for line in text.splitlines() if not line.startswith("#"))


def refusal(config: Mapping[str, object], name: str) -> str:
    """Return why a model of this config.json cannot be served; "" where it can."""
    if name in known_architectures():
        return ""
    shown = name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}..."
    known = "choose a model of an architecture that vLLM has, such as LlamaForCausalLM"
    if config.get("auto_map"):
        return (
            f"the architecture {shown!r} needs code of the model's maker (auto_map in config.json), which is"
            f" never run; {known}"
        )
    return (
        f"config.json names the architecture {shown!r}, which the model server does not know; {known}, or"
        " save it with a newer `transformers` under its present name"
    )
