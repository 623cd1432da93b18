"""History into stretches of whole seconds: pure, and additive over windows. BILL-03."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from neocloud.core.store.protocol import HistoryEntry
from neocloud.core.usage import intervals

START = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def entry(seconds: float, state: str, *, is_deleted: bool = False) -> HistoryEntry:
    return HistoryEntry(
        "r-e00a", "kind", "project-e00a", "r", at(seconds), state, 1, b"", is_deleted=is_deleted
    )


def stretches(history, start: float, end: float) -> list[tuple[str, int, int]]:
    found = intervals(history, at(start), at(end))
    return [
        (one.entry.state, int((one.start - START).total_seconds()), int((one.end - START).total_seconds()))
        for one in found
    ]


LIFE = [entry(0.4, "CREATING"), entry(3.9, "READY"), entry(60, "DELETING"), entry(62.2, "", is_deleted=True)]


def test_a_life_is_cut_into_its_states() -> None:
    assert stretches(LIFE, 0, 100) == [("CREATING", 0, 3), ("READY", 3, 60), ("DELETING", 60, 62)]


def test_only_the_window_counts() -> None:
    assert stretches(LIFE, 10, 20) == [("READY", 10, 20)]
    assert stretches(LIFE, 62, 100) == []
    assert stretches(LIFE, 20, 10) == []


def test_what_still_exists_lasts_until_the_end_of_the_window() -> None:
    assert stretches([entry(5, "READY")], 0, 3600) == [("READY", 5, 3600)]


def test_the_last_of_several_states_in_one_second_holds() -> None:
    history = [entry(5.1, "CREATING"), entry(5.2, "UPDATING"), entry(5.9, "READY")]
    assert stretches(history, 0, 10) == [("READY", 5, 10)]


def test_a_clock_set_back_never_makes_negative_time() -> None:
    history = [entry(10, "CREATING"), entry(4, "READY"), entry(20, "DELETING")]
    assert stretches(history, 0, 30) == [("READY", 10, 20), ("DELETING", 20, 30)]


def test_a_resource_without_history_used_nothing() -> None:
    assert intervals([], START, at(100)) == []


moments = st.floats(0, 1000, allow_nan=False)
histories = st.lists(st.tuples(moments, st.sampled_from(["CREATING", "READY", "UPDATING"])), max_size=8).map(
    lambda rows: [entry(seconds, state) for seconds, state in sorted(rows)]
)


@given(histories, st.lists(moments, min_size=2, max_size=6).map(sorted))
def test_windows_that_meet_add_up(history: list[HistoryEntry], cuts: list[float]) -> None:
    def seconds(start: float, end: float) -> dict[str, int]:
        found: dict[str, int] = {}
        for state, first, last in stretches(history, start, end):
            found[state] = found.get(state, 0) + last - first
        return found

    parts: dict[str, int] = {}
    for start, end in pairwise(cuts):
        for state, length in seconds(start, end).items():
            parts[state] = parts.get(state, 0) + length
    assert parts == seconds(cuts[0], cuts[-1])


@given(histories, moments, moments)
def test_stretches_follow_one_another_without_overlap(history, start: float, end: float) -> None:
    found = intervals(history, at(start), at(end))
    assert all(one.start < one.end for one in found)
    assert all(earlier.end == later.start for earlier, later in pairwise(found))
