"""The list of what is inside is valid CycloneDX, and complete."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

from cyclonedx.schema import SchemaVersion

from scripts import locked
from tests import ROOT

FILE = ROOT / "docs" / "reference" / "sbom.cdx.json"
PAGE = ROOT / "docs" / "reference" / "dependencies.md"


def test_it_is_valid_cyclonedx() -> None:
    validation = importlib.import_module("cyclonedx.validation.json")  # 2 s, in each process that collects
    assert validation.JsonStrictValidator(SchemaVersion.V1_6).validate_str(FILE.read_text()) is None


def test_it_lists_the_packages_of_the_lock() -> None:
    listed = [(one["name"], one["version"]) for one in json.loads(FILE.read_text())["components"]]
    assert listed == [(one.name, one.version) for one in locked.entries(locked.LOCK.read_text())]


def test_it_is_what_make_docs_writes(tmp_path: Path) -> None:
    made = tmp_path / "sbom.json"
    subprocess.run([sys.executable, ROOT / "scripts" / "sbom", made], check=True)
    assert made.read_text() == FILE.read_text(), "Run: make docs"


def test_licences_of_what_the_server_runs_are_told() -> None:
    entries, components = locked.entries(locked.LOCK.read_text()), json.loads(FILE.read_text())["components"]
    pairs = zip(entries, components, strict=True)
    assert not [entry.name for entry, one in pairs if "server" in entry.groups and not one["licenses"]]


def test_the_page_of_dependencies_has_the_versions_of_the_lock() -> None:
    rows = [line.split(" | ")[:2] for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    found = [(name.removeprefix("| "), version) for name, version in rows[1:]]
    assert found == [(one.name, one.version) for one in locked.entries(locked.LOCK.read_text())]
