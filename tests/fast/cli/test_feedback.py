"""`neo inference feedback`: ratings are listed page by page, and deleted after a question."""

from typing import Any

import pytest

from neocloud.cli.commands.inference import feedback
from tests.fast.cli.conftest import Neo
from tests.fast.cli.fake_control_plane import FakeServer


def rating(number: int) -> dict[str, Any]:
    texts = {"question": "What rate?", "answer": "4 %\x1b[31m", "comment": ""}
    names = {"id": f"feedback-{number}", "called": "bank", "answered_by": "bank-v2", "rating": "down"}
    return {**names, **texts, "created_at": 1795776532}


class FakeGateway:
    def __init__(self) -> None:
        self.asked: list[str] = []

    def __enter__(self) -> "FakeGateway":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def get(self, path: str) -> Any:
        self.asked.append(path)
        is_last = "after=" in path
        return {"data": [rating(2 if is_last else 1)], "has_more": not is_last}

    def delete(self, path: str) -> None:
        self.asked.append(path)


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> FakeGateway:
    fake = FakeGateway()
    monkeypatch.setattr(feedback, "gateway_of", lambda *_, **__: fake)
    return fake


def test_all_pages_are_listed(signed_in: Neo, cloud: FakeServer, gateway: FakeGateway) -> None:
    ran = signed_in("inference", "feedback", "list", "--model", "bank", "--rating", "down")
    assert ran.code == 0, ran.err
    assert gateway.asked == [
        "feedback?model=bank&rating=down&limit=1000",
        "feedback?model=bank&rating=down&after=feedback-1&limit=1000",
    ]
    assert "feedback-1" in ran.out and "feedback-2" in ran.out and "\x1b[31m" not in ran.out


def test_a_rating_is_deleted(signed_in: Neo, cloud: FakeServer, gateway: FakeGateway) -> None:
    ran = signed_in("inference", "feedback", "delete", "feedback-1", "--yes")
    assert ran.code == 0 and gateway.asked == ["feedback/feedback-1"], ran.err
