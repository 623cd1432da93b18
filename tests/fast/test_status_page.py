"""The status page and the README say how much of the published API is served; the page names each gap."""

import re

from neocloud.control_plane.api_coverage import Served, coverage
from neocloud.control_plane.composition import SERVICES
from tests import ROOT

PAGE = (ROOT / "docs" / "reference" / "status.md").read_text()
README = (ROOT / "README.md").read_text()
PUBLISHED = {path: served for path, served in coverage(SERVICES).items() if path.startswith("nebius.")}
UNSERVED = {path for path, served in PUBLISHED.items() if served is Served.UNIMPLEMENTED}
README_LINES = 90


def test_the_page_states_the_share_that_is_served() -> None:
    served, total = len(PUBLISHED) - len(UNSERVED), len(PUBLISHED)
    stated = re.search(
        r"(\d+) of the (\d+) RPCs of the published API are served, (\d+) %; the other (\d+) answer", PAGE
    )
    assert stated, "The sentence with the numbers is gone."
    assert [int(number) for number in stated.groups()] == [
        served,
        total,
        round(100 * served / total),
        len(UNSERVED),
    ]
    assert f"The emulator serves the same {served}." in PAGE


def test_the_readme_states_the_same_numbers() -> None:
    served, total = len(PUBLISHED) - len(UNSERVED), len(PUBLISHED)
    assert f"{served} of the {total} published RPCs are served" in README
    assert len(README.splitlines()) <= README_LINES


def test_each_package_with_an_unserved_service_has_a_row() -> None:
    rows = re.findall(r"^\| (`.*?) \|.*absent", PAGE, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`([\w.]+)`", row)}
    packages = {path.partition("/")[0].removeprefix("nebius.").rpartition(".")[0] for path in UNSERVED}
    short = {re.sub(r"\.v\d+$", "", package) for package in packages}
    missing = {package for package in short if not any(_is_part(name, package) for name in named)}
    assert not missing, f"No row of the status page says what is absent of {missing}."


def test_no_row_calls_a_package_absent_that_is_served() -> None:
    rows = re.findall(r"^\| ((?:`[\w.]+`(?:, )?)+) \| absent", PAGE, re.MULTILINE)
    names = [name for row in rows for name in re.findall(r"`([\w.]+)`", row)]
    assert names
    served = {
        re.sub(r"\.v\d+$", "", path.partition("/")[0].removeprefix("nebius.").rpartition(".")[0])
        for path in PUBLISHED.keys() - UNSERVED
    }
    assert not [name for name in names if name in served]


def _is_part(name: str, package: str) -> bool:
    """Return whether a row's name stands for a package: `mk8s` for `mk8s.v1alpha1`."""
    return package == name or package.startswith(f"{name}.")
