"""Write docs/reference/coverage.md: what becomes of each RPC of the contract, and which tests call it.

    python -m neocloud.control_plane.api_coverage docs/reference/coverage.md

Everything is derived, nothing is listed by hand: what is served, from the services' tables; what has a data
plane, from the kinds that are reconciled; who calls it, from the sources of the tests.

Three forms of calls are known: a path as text, `"nebius.compute.v1.DiskService/Get"`, also as an f-string
of the module's constants; the official SDK's classes, where a module imports a service's client together
with the request message of one of its methods; and a module's constant `TIER_1`, whose services it calls
in full, except for the methods in its constant `LEFT_OUT`. A module that has them counts its calls in a
test.
"""

import ast
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
FOLDERS = ("fast/conformance", "real/conformance", "real/emulator", "e2e", "long")
FILES = ("fast/server/test_sdk.py", "fast/server/test_tls.py")
SDK_PACKAGE = "nebius.api."


class Served(StrEnum):
    DATA_PLANE = "data plane"
    RECORD = "record"
    UNIMPLEMENTED = "unimplemented"


def coverage(services: Sequence[Service]) -> dict[str, Served]:
    """Return how the server serves each method, by its path."""
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


def calls_in_tests(tests: Path) -> dict[str, list[str]]:
    """Return the files of tests, relative to `tests`, by method path."""
    found: dict[str, list[str]] = defaultdict(list)
    files = [file for folder in FOLDERS for file in sorted((tests / folder).rglob("*.py"))]
    for file in [*files, *(tests / name for name in FILES)]:
        for path in sorted(calls_in_source(file.read_text())):
            found[path].append(str(file.relative_to(tests)))
    return dict(found)


def calls_in_source(source: str) -> set[str]:
    tree = ast.parse(source)
    known = {rpc.path for rpcs in contract.services().values() for rpc in rpcs}
    constants = _constants(tree)
    in_full = {
        rpc.path
        for service in _members(tree, "TIER_1", constants)
        for rpc in contract.services().get(service, ())
    }
    found = {text for text in _texts(tree, constants) if text in known} | set(_calls_of_sdk(tree)) | in_full
    return found - set(_members(tree, "LEFT_OUT", constants))


def _texts(tree: ast.Module, constants: Mapping[str, str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value.lstrip("/")
        elif isinstance(node, ast.JoinedStr):
            yield _text(node, constants).lstrip("/")


def _constants(tree: ast.Module) -> dict[str, str]:
    """Texts of the module's own names, in order, so that one may be made of another."""
    found: dict[str, str] = {}
    for node in tree.body:
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            continue
        target, value = node.targets[0], node.value
        pairs = [(target, value)]
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            pairs = list(zip(target.elts, value.elts, strict=False))
        for name, given in pairs:
            if isinstance(name, ast.Name) and isinstance(given, ast.Constant | ast.JoinedStr):
                found[name.id] = _text(given, found)
    return found


def _members(tree: ast.Module, name: str, constants: Mapping[str, str]) -> Iterator[str]:
    """The texts in the module's tuple, or the keys of its dict, of that name."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id == name for t in node.targets
        ):
            keys = node.value.keys if isinstance(node.value, ast.Dict) else getattr(node.value, "elts", ())
            yield from (_text(key, constants) for key in keys if key is not None)


def _text(node: ast.expr, constants: Mapping[str, str]) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.Name):
        return constants.get(node.id, "?")
    if isinstance(node, ast.FormattedValue):
        return _text(node.value, constants)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part, constants) for part in node.values)
    return "?"


def _calls_of_sdk(tree: ast.Module) -> Iterator[str]:
    imported = {
        f"{node.module.removeprefix(SDK_PACKAGE)}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(SDK_PACKAGE)
        for alias in node.names
    }
    for name in imported:
        for rpc in contract.services().get(name.removesuffix("Client"), ()):
            if name.endswith("Client") and rpc.input.DESCRIPTOR.full_name in imported:
                yield rpc.path


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(present_page())
