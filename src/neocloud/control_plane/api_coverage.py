# pyright: strict

"""Writes docs/reference/coverage.md: what becomes of each RPC of the contract, and which tests call it.

    python -m neocloud.control_plane.api_coverage docs/reference/coverage.md

Everything is derived, nothing is listed by hand: what is served, from the services' tables; what has a data
plane, from the kinds that are reconciled; who calls it, from the sources of the tests.
"""

import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

from neocloud.control_plane.composition import SERVICES
from neocloud.core import contract
from neocloud.core.contract import Rpc
from neocloud.core.kind import Kind
from neocloud.core.service import Dependencies, Service
from neocloud.server.request import Runtime
from neocloud.server.routing import endpoints, kinds_of
from neocloud.services import emulator
from neocloud.testing.client_calls import calls_in_tests

ROOT = Path(__file__).resolve().parents[3]
HEAD = """# Coverage of the API

Written by `make docs`; a test fails when it is stale. Every RPC of the pinned contract and of our own protos
is one of:

- **data plane**: a change that something beyond the record follows: a pod, a volume, a network, an address
- **record**: a read, or a change of the record alone
- **unimplemented**: answers UNIMPLEMENTED

"Called by" names the tests in which a client sends that request: the official SDK, or the contract's own
client for what the SDK does not have. Derived from the tests' sources; what SkyPilot and dstack send is not
counted.
"""


READS = ("Get", "List", "BatchGet", "Read")
"""How the names of methods begin that change nothing."""


class Served(StrEnum):
    DATA_PLANE = "data plane"
    RECORD = "record"
    UNIMPLEMENTED = "unimplemented"


def coverage(services: Sequence[Service]) -> dict[str, Served]:
    """What becomes of each method, by its path."""
    nothing: Any = None
    kinds = kinds_of(services)
    runtime = Runtime(Dependencies(nothing, nothing, nothing, nothing), nothing, nothing, kinds, _no, _no)
    served = endpoints(services, runtime)
    acting = {kind.rpc for kind in kinds.values() if _acts(kind)}

    def become(rpc: Rpc) -> Served:
        if rpc.path not in served:
            return Served.UNIMPLEMENTED
        is_change = not rpc.name.startswith(READS)
        return Served.DATA_PLANE if is_change and rpc.service in acting else Served.RECORD

    return {rpc.path: become(rpc) for rpcs in contract.services().values() for rpc in rpcs}


def _no() -> None:
    """Nothing is served here, only counted."""


def _acts(kind: Kind) -> bool:
    """Its reconciler makes it true, or the one of a kind that it wakes does."""
    return kind.is_reconciled or kind.has_dependents


def page(found: Mapping[str, Served], calls: Mapping[str, Sequence[str]]) -> str:
    by_service: dict[str, list[str]] = defaultdict(list)
    for path in sorted(found):
        by_service[path.partition("/")[0]].append(path)
    return "\n".join([HEAD, *_summary(found, calls), "", *_services(by_service, found, calls)]) + "\n"


def _summary(found: Mapping[str, Served], calls: Mapping[str, Sequence[str]]) -> Iterator[str]:
    packages: dict[str, Counter[str]] = defaultdict(Counter)
    for path, served in found.items():
        package = path.partition("/")[0].rpartition(".")[0]
        for name in (package, "all"):
            packages[name][served] += 1
            packages[name]["all"] += 1
            packages[name]["called"] += served is not Served.UNIMPLEMENTED and path in calls
    yield "| package | RPCs | data plane | record | unimplemented | served and called by a client test |"
    yield "|---|---|---|---|---|---|"
    for name in sorted(packages, key=lambda name: (name == "all", name)):
        counts = packages[name]
        cells = [counts[what] for what in ("all", *Served, "called")]
        yield f"| {name} | {' | '.join(map(str, cells))} |"


def _services(
    by_service: Mapping[str, Sequence[str]], found: Mapping[str, Served], calls: Mapping[str, Sequence[str]]
) -> Iterator[str]:
    unserved: list[str] = []
    for service, paths in by_service.items():
        if all(found[path] is Served.UNIMPLEMENTED for path in paths):
            unserved.append(f"{service} ({len(paths)})")
            continue
        yield f"## {service}\n"
        yield "| RPC | served | called by |"
        yield "|---|---|---|"
        for path in paths:
            yield f"| {path.partition('/')[2]} | {found[path]} | {', '.join(calls.get(path, ()))} |"
        yield ""
    yield "## Not served at all\n"
    yield "Each with its number of RPCs: " + ", ".join(unserved) + "."


def present_page() -> str:
    services = (*SERVICES, emulator.SERVICE)
    return page(coverage(services), calls_in_tests(ROOT / "tests"))


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(present_page())
