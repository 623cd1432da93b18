"""`neo storage bucket delete` says what goes, and how it comes back; a kept name is named as such."""

from typing import Any

import pytest

from neocloud.core import contract
from tests.fast.cli.conftest import Neo
from tests.fast.cli.fake_control_plane import PROJECT, FakeServer, operation

BUCKETS = "nebius.storage.v1.BucketService"
ID = "storagebucket-e00data"
OPERATIONS = "nebius.common.v1.OperationService/Get"
COUNTERS = [
    {
        "counters": {"simple_objects_quantity": 1, "simple_objects_size": 1_258_291},
        "non_current_counters": {"multipart_objects_quantity": 2, "multipart_objects_size": 1024},
    }
]


def bucket(state: str = "ACTIVE", **status: Any) -> Any:
    fields = {
        "metadata": {"id": ID, "parent_id": PROJECT, "name": "n-data"},
        "status": {"state": state, **status},
    }
    return contract.from_dict(contract.message("nebius.storage.v1.Bucket"), fields)


@pytest.fixture
def served(cloud: FakeServer) -> FakeServer:
    """A bucket with one object and two older versions."""
    state = {"now": bucket(counters=COUNTERS)}

    def delete(request: Any) -> Any:
        state["now"] = bucket("SCHEDULED_FOR_DELETION", purge_at="2026-12-05T16:00:00Z", counters=COUNTERS)
        return operation(ID)

    def create(request: Any) -> Any:
        raise contract.already_exists("bucket", request.metadata.name)

    cloud.serve(f"{BUCKETS}/Get", lambda request: state["now"])
    cloud.serve(f"{BUCKETS}/GetByName", lambda request: state["now"])
    cloud.serve(f"{BUCKETS}/Delete", delete)
    cloud.serve(f"{BUCKETS}/Create", create)
    return cloud


def test_the_question_says_what_the_bucket_holds(
    signed_in: Neo, served: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr("typer.confirm", lambda question, err: bool(asked.append(question)))
    ran = signed_in("storage", "bucket", "delete", "n-data")
    assert asked == ["Delete bucket n-data, which holds 1 object and 2 older versions (1.2 MiB)?"]
    assert ran.code == 1 and not served.asked(f"{BUCKETS}/Delete")


def test_a_script_is_told_what_went_and_how_it_comes_back(signed_in: Neo, served: FakeServer) -> None:
    ran = signed_in("storage", "bucket", "delete", "n-data", "--yes")
    assert ran.code == 0 and ran.out == "Bucket n-data is deleted.\n"
    assert "It held 1 object and 2 older versions (1.2 MiB)." in ran.err
    assert "until 2026-12-05 16:00 UTC. Bring it back: neo storage bucket undelete n-data" in ran.err


def test_an_empty_bucket_is_deleted_as_before(signed_in: Neo, served: FakeServer) -> None:
    def gone(request: Any) -> Any:
        raise contract.not_found("bucket", request.id)

    empty = bucket()
    served.serve(f"{BUCKETS}/GetByName", empty)
    served.serve(f"{BUCKETS}/Get", gone)
    served.serve(f"{BUCKETS}/Delete", operation(ID))
    ran = signed_in("storage", "bucket", "delete", "n-data", "--yes")
    assert ran.code == 0 and "held" not in ran.err and "undelete" not in ran.err


def test_the_name_of_a_deleted_bucket_names_undelete(signed_in: Neo, served: FakeServer) -> None:
    taken = signed_in("storage", "bucket", "create", "n-data")
    assert taken.code == 7 and "undelete" not in taken.err
    signed_in("storage", "bucket", "delete", "n-data", "--yes")
    kept = signed_in("storage", "bucket", "create", "n-data")
    assert kept.code == 7 and "`neo storage bucket undelete n-data`" in kept.err
    assert "`neo storage bucket purge n-data`" in kept.err


def test_a_name_of_somebody_else_is_only_taken(signed_in: Neo, served: FakeServer) -> None:
    def hidden(request: Any) -> Any:
        raise contract.not_found("bucket", request.name)

    served.serve(f"{BUCKETS}/GetByName", hidden)
    ran = signed_in("storage", "bucket", "create", "n-data")
    assert ran.code == 7 and "exists already" in ran.err and "undelete" not in ran.err
