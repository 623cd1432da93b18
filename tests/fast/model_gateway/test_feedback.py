"""/v1/feedback: only its caller rates an answer, texts need consent, a disliked candidate is taken back."""

import sqlite3
from contextlib import closing
from typing import Any

import httpx
import pytest

from neocloud.core.clock import SystemClock
from neocloud.model_gateway.feedback import store as feedback_store
from neocloud.model_gateway.feedback.store import RatingStore
from neocloud.model_gateway.openai_files.handlers import Page
from neocloud.testing.gateway import route
from neocloud.testing.waiting import wait_until
from tests.fast.model_gateway.conftest import Served

PROJECT = "project-a"


@pytest.fixture
def rated(served: Served) -> Served:
    """Without ratings of the tests before."""
    with closing(sqlite3.connect(served.gateway.home / "gateway" / "feedback.db")) as connection, connection:
        connection.execute("DELETE FROM ratings")
    return served


def answered(served: Served, **fields: Any) -> str:
    """Return the id of a request that was answered."""
    response = served.post(**fields)
    assert response.status_code == 200, response.text
    return response.headers["x-request-id"]


def rate(served: Served, request_id: str, rating: str = "up", **fields: Any) -> httpx.Response:
    return served.client.post("/v1/feedback", json={"request_id": request_id, "rating": rating, **fields})


def listed(served: Served, **query: str) -> list[dict[str, Any]]:
    response = served.client.get("/v1/feedback", params=query)
    assert response.status_code == 200, response.text
    return response.json()["data"]


def test_a_rating_is_stored_without_any_text(rated: Served) -> None:
    made = rate(rated, answered(rated))
    assert made.status_code == 201, made.text
    (found,) = listed(rated)
    assert found == made.json()
    assert (found["rating"], found["called"], found["answered_by"]) == ("up", "bank", "bank")
    assert found["question"] == found["answer"] == found["comment"] == ""


def test_a_streamed_answer_is_rated_too(rated: Served) -> None:
    assert rate(rated, answered(rated, stream=True)).status_code == 201


def test_texts_need_consent_and_have_a_limit(rated: Served) -> None:
    request_id = answered(rated)
    refused = rate(rated, request_id, comment="wrong rate")
    assert refused.status_code == 400 and "consent" in refused.json()["error"]["message"]
    assert not listed(rated)
    texts = {"question": "What rate?", "answer": "4 %", "comment": "wrong rate"}
    assert rate(rated, request_id, "down", consent=True, **texts).status_code == 201
    (found,) = listed(rated)
    assert {name: found[name] for name in texts} == texts
    long = rate(rated, request_id, consent=True, answer="x" * 20_001)
    assert long.status_code == 400 and "20,000" in long.json()["error"]["message"]


def test_a_second_rating_replaces_the_first(rated: Served) -> None:
    request_id = answered(rated)
    rate(rated, request_id, "up")
    rate(rated, request_id, "down")
    assert [each["rating"] for each in listed(rated)] == ["down"]


def test_ratings_are_listed_by_model_and_by_rating_and_in_pages(rated: Served) -> None:
    for rating in ("up", "down", "up"):
        rate(rated, answered(rated), rating)
    rate(rated, answered(rated, model="tuned"), "down")
    assert [each["called"] for each in listed(rated, rating="down")] == ["tuned", "bank"]
    assert len(listed(rated, model="bank")) == 3
    first = listed(rated, limit="2")
    rest = listed(rated, limit="2", after=first[-1]["id"])
    assert [each["id"] for each in (*first, *rest)] == [each["id"] for each in listed(rated)]
    assert rated.client.get("/v1/feedback", params={"rating": "meh"}).status_code == 400
    assert rated.client.get("/v1/feedback", params={"after": "feedback-none"}).status_code == 400


def test_nobody_rates_an_answer_of_another_one(rated: Served) -> None:
    """The ids of requests are no secret: they count upwards."""
    request_id = answered(rated)
    other = {"authorization": "Bearer another-key"}
    rated.gateway.control_plane.add_caller("another-key", tenant="tenant-a", projects=[PROJECT])
    stolen = rated.client.post(
        "/v1/feedback", json={"request_id": request_id, "rating": "down"}, headers=other
    )
    assert stolen.status_code == 404, stolen.text
    assert rate(rated, "req_unknown").status_code == 404
    assert rate(rated, "../../etc/passwd").status_code == 404


def test_who_lost_access_rates_nothing(rated: Served) -> None:
    plane, leaver = rated.gateway.control_plane, {"authorization": "Bearer leaver-key"}
    may_rate = ["inference.deployments.invoke"]
    plane.add_caller("leaver-key", tenant="tenant-a", projects=[PROJECT], permissions=may_rate)
    request_id = rated.post(headers=leaver).headers["x-request-id"]
    plane.add_caller("leaver-key", tenant="tenant-a", projects=[PROJECT], permissions=[])

    def status() -> int:
        body = {"request_id": request_id, "rating": "up", "consent": True, "comment": "still here"}
        return rated.client.post("/v1/feedback", json=body, headers=leaver).status_code

    wait_until(status, holds=lambda code: code == 404)


@pytest.mark.parametrize(
    "body",
    [
        {"rating": "up"},
        {"request_id": "r", "rating": "best"},
        {"request_id": ["r"], "rating": "up"},
        {"request_id": "r", "rating": "up", "consent": "yes"},
        {"request_id": "r", "rating": "up", "comment": {"a": 1}, "consent": True},
        {"request_id": "r", "rating": "up", "score": 1},
        [],
    ],
)
def test_a_bad_body_is_refused(rated: Served, body: Any) -> None:
    assert rated.client.post("/v1/feedback", json=body).status_code == 400


def test_a_rating_is_deleted_by_who_may(rated: Served) -> None:
    made = rate(rated, answered(rated)).json()
    rated.gateway.control_plane.add_caller(
        "user-key", tenant="tenant-a", projects=[PROJECT], permissions=["inference.deployments.invoke"]
    )
    user = {"authorization": "Bearer user-key"}
    assert rated.client.get("/v1/feedback", headers=user).status_code == 403
    assert rated.client.delete(f"/v1/feedback/{made['id']}", headers=user).status_code == 404
    assert rated.client.delete(f"/v1/feedback/{made['id']}").json()["deleted"] is True
    assert not listed(rated)
    assert rated.client.delete(f"/v1/feedback/{made['id']}").status_code == 404


def test_a_candidate_that_callers_dislike_is_taken_back(rated: Served) -> None:
    first, second = rated.engines
    release = {
        "release_id": "inferencerelease-disliked",
        "tenant_id": "tenant-a",
        "name": "bank",
        "candidate_name": "bank-v2",
        "share_percent": 50,
        "most_failed_percent": 5,
        "least_requests": 100,
        "most_disliked_percent": 30,
    }
    reports = rated.gateway.control_plane.release_reports
    reports.clear()
    rated.gateway.set_routes(
        route("bank", replicas=[first.address], engine_name="mock"),
        route("bank-v2", replicas=[second.address], engine_name="mock"),
        releases=[release],
    )
    by_candidate = []
    while len(by_candidate) < 10:
        response = rated.post()
        if response.json()["model"] == "bank-v2":
            by_candidate.append(response.headers["x-request-id"])
        else:
            rate(rated, response.headers["x-request-id"], "down")  # the model's own do not count
    for request_id in by_candidate[:9]:
        rate(rated, request_id, "up")
    rate(rated, by_candidate[0], "down")
    rate(rated, by_candidate[0], "up")
    for request_id in by_candidate[1:4]:
        rate(rated, request_id, "down")
    assert rated.post().status_code == rated.post().status_code == 200
    assert not any(each.get("rolled_back_because") for each in reports)
    rate(rated, by_candidate[9], "down")

    def reasons() -> list[str]:
        return [each["rolled_back_because"] for each in reports if each.get("rolled_back_because")]

    (reason,) = wait_until(reasons)
    assert reason == "4 of its last 10 rated answers were disliked; 30 % may."
    assert {rated.post().json()["model"] for _ in range(4)} == {"bank"}
    wait_until(lambda: sum(int(each.get("liked", 0)) for each in reports) == 6)
    assert sum(int(each.get("disliked", 0)) for each in reports) == 4


def test_a_project_keeps_its_newest_ratings(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feedback_store, "MOST_OF_PROJECT", 3)
    store = RatingStore(tmp_path / "feedback.db", SystemClock())
    fields = dict.fromkeys(("subject_id", "called", "answered_by", "question", "answer", "comment"), "")
    for project in ("one", "other"):
        for number in range(5):
            store.put({**fields, "project_id": project, "request_id": f"{project}-{number}", "rating": "up"})
    kept, has_more = store.page("one", Page("", 10, newest_first=True), called="", rating="")
    assert [each.request_id for each in kept] == ["one-4", "one-3", "one-2"] and not has_more
    monkeypatch.setattr(feedback_store, "KEPT_SECONDS", -1)
    assert store.page("one", Page("", 10, newest_first=True), called="", rating="") == ([], False)
    store.close()
