"""The order of versions as dpkg has it, and the file of the security tracker."""

import itertools
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from neocloud.object_gateway.work.scan import advisories
from neocloud.object_gateway.work.scan.advisories import NotAdvisories, build, findings
from neocloud.object_gateway.work.scan.versions import KEY, compare

VERSIONS = (
    *("0", "1", "1.0", "1.00", "1.0-0", "1.0-1", "1.0~rc1", "1.0~~", "1.0~", "1.0+b1", "1.0-1+deb12u1"),
    *("1.0-1+deb12u10", "1.0-1~bpo12+1", "1:0.1", "0:1.0", "10", "9", "1.a", "1.A", "1.+", "1.-1", "1.0.a"),
    *("1.0a", "2.36-9+deb12u4", "2.36-9+deb12u3", "7.88.1-10+deb12u5", "6.1.0-18-amd64", "1-1-1"),
)


def test_versions_are_ordered_as_dpkg_orders_them() -> None:
    """All pairs in one process."""
    pairs = list(itertools.combinations(VERSIONS, 2))
    tests = "\n".join(f"dpkg --compare-versions '{a}' lt '{b}' && echo 1 || echo 0" for a, b in pairs)
    judged = subprocess.run(["sh"], input=tests, capture_output=True, text=True, check=True).stdout.split()
    assert [str(int(compare(a, b) < 0)) for a, b in pairs] == judged
    assert all(compare(a, b) == -compare(b, a) or compare(a, b) * compare(b, a) < 0 for a, b in pairs)


def test_long_numbers_are_no_trouble() -> None:
    assert compare("9" * 5000, "1" + "0" * 5000) < 0
    assert sorted(["2", "10", "1~"], key=KEY) == ["1~", "2", "10"]


def state(status: str, fixed: str | None = None, urgency: str = "not yet assigned") -> dict[str, Any]:
    found = {"status": status, "urgency": urgency, "repositories": {"bookworm": "1.0-1"}}
    return {**found, **({} if fixed is None else {"fixed_version": fixed})}


TRACKER = {
    "curl": {
        "CVE-2026-0001": {
            "description": "An overflow",
            "scope": "remote",
            "debianbug": 1234,
            "releases": {"bookworm": state("resolved", "1.0-2", "high"), "sid": state("resolved", "2.0-1")},
        },
        "CVE-2026-0002": {"releases": {"bookworm": {**state("open", urgency="low"), "nodsa": "Minor issue"}}},
        "CVE-2026-0003": {"releases": {"bookworm": state("resolved", "0")}},
        "CVE-2026-0004": {"releases": {"bookworm": state("undetermined")}},
        "TEMP-0000000-A": {"releases": {"sid": state("open")}},
    },
    "zlib": {"CVE-2026-0001": {"releases": {"bookworm": state("open")}}},
}


def test_what_advisories_say_of_an_image(tmp_path: Path) -> None:
    file, index = tmp_path / "debian.json", tmp_path / "advisories.db"
    file.write_text(json.dumps(TRACKER))
    os.utime(file, (1_700_000_000, 1_700_000_000))
    assert build(file, index) == 7
    found = findings(index, "bookworm", [("curl", "1.0-1"), ("unknown", "1")])
    assert found is not None and found[0].timestamp() == 1_700_000_000
    assert [(each.id, each.fixed_version, each.urgency, each.status) for each in found[1]] == [
        ("CVE-2026-0001", "1.0-2", "high", "resolved"),
        ("CVE-2026-0002", "", "low", "open"),
        ("CVE-2026-0004", "", "not yet assigned", "undetermined"),
    ]
    repaired = findings(index, "bookworm", [("curl", "1.0-2"), ("zlib", "1.3")])
    assert repaired is not None
    assert [(each.id, each.source) for each in repaired[1]] == [
        ("CVE-2026-0001", "zlib"),
        ("CVE-2026-0002", "curl"),
        ("CVE-2026-0004", "curl"),
    ]
    assert findings(index, "woody", [("curl", "1.0-1")]) is None


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"curl": []}',
        '{"curl": {"CVE-1": []}}',
        '{"curl": {"CVE-1": {"releases": {"sid": {}}}}}',
        '{"curl": {"CVE-1": {"releases": {"sid": {"status": "open", "fixed_version": 1, "urgency": ""}}}}}',
    ],
)
def test_another_file_is_refused_and_the_index_stays(tmp_path: Path, content: str) -> None:
    file, index = tmp_path / "debian.json", tmp_path / "advisories.db"
    file.write_text(json.dumps(TRACKER))
    build(file, index)
    before = advisories.stamp(index)
    file.write_text(content)
    with pytest.raises(NotAdvisories):
        build(file, index)
    assert advisories.stamp(index) == before is not None
