"""Find the API methods that the client tests call, in their sources.

Three forms are known: a path as text, `"nebius.compute.v1.DiskService/Get"`, also as an f-string of the
module's constants; the official SDK's classes, where a module imports a service's client together with the
request message of one of its methods; and a module's constant `TIER_1`, whose services it calls in full, save
the methods that its constant `LEFT_OUT` gives reasons for. A module that has them counts its calls in a test.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from neocloud.core import contract

FOLDERS = ("conformance", "emulator", "e2e")
FILES = ("server/test_sdk.py", "server/test_tls.py")
SDK_PACKAGE = "nebius.api."


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
