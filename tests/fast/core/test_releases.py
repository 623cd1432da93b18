"""The releases that work together, and the texts that count as a version."""

import pytest

from neocloud import __version__
from neocloud.core import releases
from neocloud.core.releases import (
    HEADER,
    LAST_MINORS,
    OLDEST_HEADER,
    Release,
    refusal,
    refusal_by_server,
    stated,
)

HOSTILE = (
    "", "7", "7.", ".5", "x", "v7.5", "7.5.0\n", "7.5 0", " 7.5", "7.5, 7.5", "7.5;rm",
    "-7.5", "7.-5", "7.5.\x1b[2J", "٧.٥", "７.５",
    "99999.1", "7.99999", "7" * 10_000, "7.5." + "0" * 64, "7.5" + ".0" * 100_000,
)  # fmt: skip


@pytest.mark.parametrize(
    ("one", "other", "works"),
    [
        ("0.1.0", "0.1.9", True),
        ("0.1.0", "0.2.0", True),
        ("0.2.0rc1", "0.3.dev4", True),
        ("0.2", "0.1.0+bank.7", True),
        ("0.9.0", "0.10.0", True),
        ("1.0.0", "1.1.0", True),
        ("0.1.0", "0.3.0", False),
        ("0.1.0", "0.10.0", False),
        ("0.1.0", "1.1.0", False),
        ("0.1.0", "2.0.0", False),
    ],
)
def test_releases_next_to_each_other_work_together(one: str, other: str, works: bool) -> None:
    assert (refusal(one, other) is None, refusal(other, one) is None) == (works, works)


def test_a_new_major_works_with_the_last_release_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    first, last, earlier = Release(1, 0), Release(0, 9), Release(0, 8)
    assert first.works_with(last) and earlier.works_with(first), "the older one leaves it to the newer one"
    monkeypatch.setattr(releases, "LAST_MINORS", {0: 9})
    assert first.works_with(last) and last.works_with(first)
    assert not first.works_with(earlier) and not Release(1, 1).works_with(last)


@pytest.mark.parametrize(
    ("version", "oldest"),
    [("0.1.0", "0.0"), ("0.0.3", "0.0"), ("0.9.2", "0.8"), ("1.0.0rc1", "0.9"), ("1.1", "1.0")],
)
def test_a_call_states_the_oldest_release_that_its_client_works_with(
    version: str, oldest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(releases, "LAST_MINORS", {0: 9})
    assert stated(version) == ((HEADER, version), (OLDEST_HEADER, oldest))


def test_a_call_without_a_release_states_none() -> None:
    assert stated("") == () and stated("unknown") == ((HEADER, "unknown"),)


@pytest.mark.parametrize(
    ("server", "oldest", "works"),
    [("0.9.0", "0.9", True), ("0.8.9", "0.9", False), ("0.9.0", "1.0", False), ("0.9.0", "", False)],
)
def test_a_server_believes_a_client_of_the_next_major(server: str, oldest: str, works: bool) -> None:
    found = refusal_by_server({HEADER: "1.0.0", OLDEST_HEADER: oldest}, server)
    assert (found is None) == works


def test_a_server_needs_no_statement_within_its_major() -> None:
    assert refusal_by_server({HEADER: "0.2.0"}, "0.1.0") is None
    assert refusal_by_server({HEADER: "0.1.0", OLDEST_HEADER: "0.0"}, "1.0.0") is None, (
        "no last MINOR is known"
    )
    assert refusal_by_server({}, "0.1.0") is None


def test_earlier_majors_have_their_last_release_listed() -> None:
    own = Release.of(__version__)
    assert own is not None and set(range(own.major)) == set(LAST_MINORS)


@pytest.mark.parametrize("version", HOSTILE, ids=lambda version: ascii(version[:12]))
def test_a_text_that_is_no_version_is_never_refused(version: str) -> None:
    assert Release.of(version) is None
    assert refusal(version, "0.1.0") is None and refusal("0.1.0", version) is None
    assert refusal_by_server({HEADER: version}, "0.1.0") is None
    assert refusal_by_server({HEADER: "1.0.0", OLDEST_HEADER: version}, "0.9.0") is not None


def test_the_refusal_names_both_releases_and_what_to_install() -> None:
    older, newer = refusal("0.1.0", "0.4.2"), refusal("0.4.2", "0.1.0")
    assert older is not None and newer is not None
    assert "`neo` is release 0.1 and the cloud runs release 0.4" in older.message
    assert older.next_step == "Install that of the cloud: pip install 'neocloud==0.4.*'"
    assert "pip install 'neocloud==0.1.*'" in newer.next_step
    assert "run `neo up` of release 0.4 on its machine" in newer.next_step
