"""Modules of the command line import each other in one direction, also those that are imported by name."""

import ast
from graphlib import TopologicalSorter

from tests import ROOT

SOURCE = ROOT / "src"


def test_no_module_of_the_command_line_needs_itself() -> None:
    files = {
        ".".join(file.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): file
        for file in (SOURCE / "neocloud" / "cli").rglob("*.py")
    }
    needed: dict[str, set[str]] = {name: set() for name in files}
    for name, file in files.items():
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                named = {f"{node.module}.{each.name}" for each in node.names}
                needed[name] |= {each if each in files else node.module for each in named}
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                needed[name].add(node.value)
        needed[name] = needed[name] & files.keys() - {name}
    assert sum(map(len, needed.values())) > 300
    list(TopologicalSorter(needed).static_order())  # raises CycleError, which names the circle
