"""A release sends a share of a name's requests to a candidate, which is taken back at once when it fails."""

from collections import Counter
from typing import Any

import pytest

from neocloud.testing.gateway import route
from neocloud.testing.mock_engine import Behaviour
from neocloud.testing.waiting import wait_until
from tests.fast.model_gateway.conftest import Served

CANDIDATE = "bank-v2"


def release(number: int, **more: Any) -> dict[str, Any]:
    return {
        "release_id": f"inferencerelease-{number}",
        "tenant_id": "tenant-a",
        "name": "bank",
        "candidate_name": CANDIDATE,
        "share_percent": 25,
        "most_failed_percent": 5,
        "least_requests": 20,
        **more,
    }


def begin(served: Served, made: dict[str, Any], candidate: str | None = None) -> None:
    """Serve "bank" by the first engine, and its candidate by the second."""
    first, second = served.engines
    places = [second.address] if candidate is None else [candidate] if candidate else []
    served.gateway.control_plane.release_reports.clear()
    served.gateway.set_routes(
        route("bank", replicas=[first.address], engine_name="mock"),
        route(CANDIDATE, replicas=places, engine_name="mock"),
        releases=[made],
    )


def models(served: Served, count: int, **fields: Any) -> Counter[str]:
    """Return how many of so many requests each model answered."""
    found = Counter[str]()
    for _ in range(count):
        response = served.post(**fields)
        assert response.status_code == 200, response.text
        found[response.json()["model"]] += 1
    return found


def reason(served: Served) -> str:
    def reasons() -> list[str]:
        reports = served.gateway.control_plane.release_reports
        return [report["rolled_back_because"] for report in reports if report.get("rolled_back_because")]

    return wait_until(reasons)[0]


def test_a_candidate_answers_its_share_and_is_counted(served: Served) -> None:
    begin(served, release(1))
    assert models(served, 40) == {"bank": 30, CANDIDATE: 10}

    def requests() -> int:
        reports = served.gateway.control_plane.release_reports
        return sum(int(report.get("requests", 0)) for report in reports)

    wait_until(lambda: requests() == 10)
    assert not any(report.get("failed") for report in served.gateway.control_plane.release_reports)


def test_who_calls_the_candidate_by_its_own_name_is_not_part_of_the_release(served: Served) -> None:
    begin(served, release(2, share_percent=50))
    assert models(served, 4, model=CANDIDATE) == {CANDIDATE: 4}
    assert models(served, 4) == {"bank": 2, CANDIDATE: 2}


def test_a_dead_engine_is_noticed_by_nobody_and_taken_back_at_once(served: Served) -> None:
    """Nothing listens there: the connection is refused, and the model itself answers."""
    begin(served, release(3, share_percent=99), candidate="127.0.0.1:9")
    assert models(served, 12) == {"bank": 12}
    assert reason(served) == "3 of its requests failed in a row."


def test_a_candidate_without_a_replica_is_taken_back_with_the_first_request(served: Served) -> None:
    begin(served, release(4, share_percent=99), candidate="")
    assert models(served, 3) == {"bank": 3}
    assert reason(served) == "It has no replica that can answer."


@pytest.mark.parametrize("fault", ["error", "drop", "busy"])
def test_errors_of_the_candidate_are_answered_by_the_model(served: Served, fault: str) -> None:
    begin(served, release(5, share_percent=99))
    served.engines[1].tell(**vars(Behaviour(tokens=8, fault=fault)))
    assert models(served, 8) == {"bank": 8}
    assert "failed in a row" in reason(served)
    served.engines[1].tell(**vars(Behaviour(tokens=8)))
    assert models(served, 4) == {"bank": 4}, "it stays away until another release"
    begin(served, release(6, share_percent=99))
    assert models(served, 4)[CANDIDATE] >= 3


def test_a_slow_candidate_is_taken_back(served: Served) -> None:
    begin(served, release(7, share_percent=99, least_requests=5, slowest_first_byte_milliseconds=1))
    served.engines[1].tell(**vars(Behaviour(tokens=8, first_seconds=0.02)))
    found = models(served, 12)
    assert 5 <= found[CANDIDATE] < 8
    assert "in the mean of" in reason(served)


def test_a_promoted_candidate_answers_every_request(served: Served) -> None:
    begin(served, release(8, is_promoted=True))
    assert models(served, 4) == {CANDIDATE: 4}
