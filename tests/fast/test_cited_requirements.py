"""Every requirement that a test cites exists, and is one that some test shows."""

import re

from tests import ROOT

TESTS = ROOT / "tests"
NUMBERED = re.compile(r"\b([A-Z][A-Z0-9]*)-(\d{2})\b")


def test_cited_requirements_are_those_that_tests_show() -> None:
    known = {
        word
        for line in (TESTS / "requirement_ids.txt").read_text().splitlines()
        if not line.startswith("#")
        for word in line.split()
    }
    areas = {requirement.partition("-")[0] for requirement in known}
    cited = {
        (match[0], str(file.relative_to(TESTS)))
        for file in TESTS.rglob("*.py")
        for match in NUMBERED.finditer(file.read_text())
        if match[1] in areas
    }
    assert len(cited) > 100
    assert {(requirement, file) for requirement, file in cited if requirement not in known} == set()
