# pyright: strict
"""Render and load nftables rules.

A rule set is loaded as a whole or not at all. Values come from parsed addresses, numbers and checked names.
"""

import asyncio
from collections.abc import Iterable

from neocloud.engines.base import EngineError

OUTSIDE_CHAIN = "to_outside"
"""Chain that decides which addresses outside this machine pods may reach."""


def rendered_set(name: str, kind: str, elements: Iterable[object], *, ranges: bool = False) -> list[str]:
    """Return a named set; sorted, so that the same state gives the same text."""
    return _rendered("set", name, kind, elements, ranges)


def rendered_map(name: str, kind: str, elements: Iterable[object]) -> list[str]:
    return _rendered("map", name, kind, elements, False)


def rendered_chain(name: str, *rules: str) -> list[str]:
    return [f"  chain {name} {{", *(f"    {rule}" for rule in rules), "  }"]


def listed(values: Iterable[object]) -> str:
    """Return an anonymous set."""
    return f"{{ {', '.join(str(value) for value in values)} }}"


async def load(rules: str) -> None:
    """Load a rule set in one transaction. Raises EngineError."""
    process = await asyncio.create_subprocess_exec(
        "nft",
        "-f",
        "-",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, errors = await process.communicate(rules.encode())
    if process.returncode:
        raise EngineError(
            "The firewall rules that separate namespaces could not be loaded: "
            f"{errors.decode(errors='replace').strip()}. Kernel support for nf_tables is needed."
        )


def _rendered(what: str, name: str, kind: str, elements: Iterable[object], ranges: bool) -> list[str]:
    values = sorted({str(element) for element in elements})
    return [
        f"  {what} {name} {{",
        f"    type {kind}",
        *(["    flags interval"] if ranges else []),
        *([f"    elements = {{ {', '.join(values)} }}"] if values else []),
        "  }",
    ]
