"""Ranks that are slow or wait, from reports of the probe."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from neocloud.services.slurm.api.diagnosis import DiagnosisFinding, diagnose
from neocloud.services.slurm.api.findings import BadReport
from neocloud.services.slurm.api.rank_reports import MOST_LINE_BYTES, RankReport, rank_reports

NODES = ["worker-0", "worker-1"]
WAITS = [
    ["wait", "torch/distributed/work.py", 9],
    ["all_reduce", "torch/distributed/distributed_c10d.py", 3252],
    ["train", "home/lou/train.py", 40],
]
READS = [["read", "home/lou/data.py", 7], ["train", "home/lou/train.py", 31]]


def rank(number: int, **changes: Any) -> dict[str, Any]:
    report = {"rank": number, "times": [], "stacks": [WAITS] * 3, "why": [], "moved": None}
    return {**report, **changes}


def times(own: float, step: float = 1.0, count: int = 20) -> list[list[Any]]:
    """Steps that take the same time, as those of ranks that wait for each other."""
    return [[number, step, step - own] for number in range(count)]


def read(*ranks: dict[str, Any]) -> list[RankReport]:
    """Read a report in which even ranks are on one node and odd ones on the other."""
    lines = [
        {"node": node, "ranks": [each for each in ranks if int(each["rank"]) % 2 == n]}
        for n, node in enumerate(NODES)
    ]
    return rank_reports(b"\n".join(json.dumps(line).encode() for line in lines), NODES)


def findings(*ranks: dict[str, Any], suspects: dict[str, str] | None = None) -> dict[str, DiagnosisFinding]:
    return {each.kind: each for each in diagnose(read(*ranks), suspects or {}).findings}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"rank": -1}, "rank"),
        ({"rank": True}, "rank"),
        ({"rank": "0"}, "rank"),
        ({"times": [[1, 2.0, None]] * 201}, "length <= 200"),
        ({"times": [[1, float("nan"), None]]}, "malformed"),
        ({"times": [[1, 1e300, None]]}, "`float` <="),
        ({"times": [[1, 1.0, 2.0]]}, "waited longer"),
        ({"times": [[1, 1.0]]}, "at least length 3"),
        ({"times": [[1, 1.0, None, 2]]}, "at most length 3"),
        ({"stacks": [[["f", "a.py", 1]] * 25]}, "length <= 24"),
        ({"stacks": [WAITS] * 9}, "length <= 8"),
        ({"stacks": [[[1, "a.py", 1]]]}, "Expected `str`"),
        ({"stacks": "x"}, "Expected `array`"),
        ({"why": None}, "Expected `array`"),
        ({"moved": "yes"}, "Expected `bool"),
    ],
)
def test_a_report_that_no_probe_writes_is_refused(change: dict[str, Any], why: str) -> None:
    with pytest.raises(BadReport, match=why):
        read(rank(0, **change))


@pytest.mark.parametrize(
    "output",
    [
        b"not json",
        b"[" * 100_000,
        b'{"node": "worker-9", "ranks": []}',
        b'{"node": ["worker-0"], "ranks": []}',
        b'{"node": "worker-0", "ranks": []}\n{"node": "worker-0", "ranks": []}',
        b'{"node": "worker-0", "ranks": [7]}',
        b'{"node": "worker-0", "ranks": [], "x": "' + b"y" * MOST_LINE_BYTES + b'"}',
        json.dumps({"node": "worker-0", "ranks": [rank(1), rank(1)]}).encode(),
    ],
)
def test_output_of_a_program_in_the_probes_place_is_refused(output: bytes) -> None:
    with pytest.raises(BadReport):
        rank_reports(output, NODES)


def test_names_of_a_job_have_no_terminal_escapes_and_are_short() -> None:
    frame = ["\x1b]0;owned\x07\u202ename", "x" * 5000, 1]
    (report,) = read(rank(0, stacks=[[frame]], why=["\x1b[2J"]))
    shown = report.stacks[0][0]
    assert shown.name == "?]0;owned??name" and len(shown.file) == 120 and report.why == ("?[2J",)


def test_the_rank_that_works_longest_is_slow_though_all_steps_take_the_same_time() -> None:
    found = findings(*(rank(n, times=times(0.5 if n == 3 else 0.3 + n / 1000)) for n in range(8)))
    assert found["slow"].ranks == [3] and found["slow"].nodes == ["worker-1"]
    assert "cannot tell" in found["slow"].message, "a node is not blamed for what its rank does"


def test_a_node_is_blamed_by_what_the_cloud_knows_and_by_nothing_else() -> None:
    ranks = [rank(n, times=times(0.5 if n == 3 else 0.3)) for n in range(8)]
    message = findings(*ranks, suspects={"worker-1": "neocloud: XID 79"})["slow"].message
    assert "evidence of its own against worker-1: neocloud: XID 79" in message
    assert "evidence" not in findings(*ranks, suspects={"worker-0": "neocloud: XID 79"})["slow"].message


def test_a_difference_that_is_too_small_to_matter_is_none() -> None:
    assert "slow" not in findings(*(rank(n, times=times(0.309 if n == 3 else 0.3)) for n in range(8)))
    assert "same_speed" in findings(*(rank(n, times=times(0.3)) for n in range(8)))


@pytest.mark.parametrize(("own", "is_slow"), [(0.4, False), (0.7, True)])
def test_of_two_ranks_one_must_take_half_as_long_again(own: float, is_slow: bool) -> None:
    found = findings(rank(0, times=times(0.3)), rank(1, times=times(own)))
    assert ("slow" in found) is is_slow
    assert not is_slow or "not an outlier" in found["slow"].message


def test_equal_step_times_without_waiting_times_prove_nothing() -> None:
    rows = [[number, 1.0, None] for number in range(20)]
    diagnosis = diagnose(read(*(rank(n, times=rows) for n in range(8))), {})
    assert not [each for each in diagnosis.findings if each.kind in ("slow", "same_speed")]
    assert any("waited" in text for text in diagnosis.not_run)


def test_ranks_that_write_no_step_times_are_named() -> None:
    diagnosis = diagnose(read(rank(0, times=times(0.3)), rank(1), rank(2)), {})
    assert any("Ranks 1, 2 wrote none" in text for text in diagnosis.not_run)


def test_the_rank_that_others_wait_for_is_elsewhere() -> None:
    found = findings(rank(0), rank(1), rank(2, stacks=[READS] * 3), rank(3))
    assert found["elsewhere"].ranks == [2]
    assert "3 of 4 ranks wait in all_reduce" in found["elsewhere"].message
    assert "read (home/lou/data.py:7)" in found["elsewhere"].message


def test_a_job_whose_steps_end_does_not_hang() -> None:
    moving = [rank(n, times=times(0.3), moved=True) for n in range(3)]
    assert "elsewhere" not in findings(*moving, rank(3, times=times(0.3), moved=True, stacks=[READS] * 3))


def test_a_rank_that_ended_fewer_steps_than_the_others_is_behind() -> None:
    ranks = [rank(n, times=times(0.3, count=19 if n == 2 else 20)) for n in range(4)]
    assert findings(*ranks)["behind"].ranks == [2]
    moving = [{**each, "moved": True} for each in ranks]
    assert "behind" not in findings(*moving), "they were not read in the same moment"


def test_different_collectives_are_the_programs_fault_and_no_node_is_named() -> None:
    gathers = [["all_gather", "torch/distributed/distributed_c10d.py", 1], *READS]
    found = findings(rank(0), rank(1), rank(2, stacks=[gathers] * 3), rank(3))
    assert "different paths" in found["different_collectives"].message
    assert "cannot tell" not in found["different_collectives"].message


def test_when_all_wait_in_one_operation_nobody_is_to_blame() -> None:
    found = findings(*(rank(n) for n in range(4)))
    assert not found["all_wait"].ranks and "network" in found["all_wait"].message


def test_a_users_own_function_is_no_collective() -> None:
    own: Sequence[Any] = [["gather", "home/lou/data.py", 1]]
    found = findings(rank(0, stacks=[own] * 3), rank(1, stacks=[own] * 3), rank(2, stacks=[READS] * 3))
    assert found["elsewhere"].ranks == [2], "most ranks stay in one place, whatever it is called"


def test_stacks_that_cannot_be_read_are_not_run() -> None:
    diagnosis = diagnose(read(rank(0), rank(1, stacks=[], why=["it is not a Python process"])), {})
    assert "Stacks: none of rank 1." in diagnosis.not_run
    assert any("it is not a Python process" in text for text in diagnosis.not_run)
    assert not diagnose([], {}).findings and diagnose([], {}).not_run
