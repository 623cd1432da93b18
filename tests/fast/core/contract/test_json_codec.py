from datetime import UTC, datetime

import pytest

from neocloud.core import contract

Cluster = contract.message("neocloud.slurm.v1.Cluster")


def test_every_request_and_answer_round_trips_empty() -> None:
    for rpc in contract.methods().values():
        for cls in (rpc.input, rpc.output):
            assert contract.from_json(cls, contract.to_json(cls())) == cls()


def test_any_and_time_round_trip() -> None:
    operation = contract.message("nebius.common.v1.Operation")(
        request=contract.pack(Cluster(metadata={"name": "bank"})),
        created_at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    )
    text = contract.to_json(operation)
    assert '"created_at": "2026-01-02T03:04:05Z"' in text
    assert contract.from_json(type(operation), text) == operation


def test_a_document_tells_numbers_from_digits() -> None:
    """YAML has numbers without quotes, and a name or label that consists of digits with them."""
    metadata = {"name": "7", "labels": {"team": "8"}, "resource_version": 9}
    spec = {"node_sets": [{"name": "worker", "count": 3}], "subnet_id": "10"}
    cluster = Cluster(metadata=metadata, spec=spec)
    document = contract.to_document(cluster)
    assert document == contract.to_dict(cluster)
    assert contract.to_document(contract.pack(cluster)) == contract.to_dict(contract.pack(cluster))

    def numbers(value: object) -> list[str]:
        if isinstance(value, dict):
            return [each for inner in value.values() for each in numbers(inner)]
        if isinstance(value, list):
            return [each for inner in value for each in numbers(inner)]
        return [value] if isinstance(value, contract.Int64) else []

    assert numbers(document) == ["9", "3"]


@pytest.mark.parametrize("text", ["", "{}", b"{}"])
def test_no_body_is_an_empty_message(text) -> None:
    assert contract.from_json(Cluster, text) == Cluster()


@pytest.mark.parametrize("names", [{"node_sets": []}, {"nodeSets": []}])
def test_both_spellings_of_a_field_are_read(names) -> None:
    assert contract.from_dict(Cluster, {"spec": names}).HasField("spec")


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "7",
        '{"spek": {}}',
        '{"spec": {"login": {"port": "x"}}}',
        '{"spec": 1}',
        b"\xff",
        "[" * 100_000,
    ],
)
def test_what_is_no_message_is_an_invalid_argument(text) -> None:
    with pytest.raises(contract.ApiError) as caught:
        contract.from_json(Cluster, text)
    assert caught.value.code is contract.Code.INVALID_ARGUMENT
    assert "neocloud.slurm.v1.Cluster" in caught.value.message


def test_times_keep_their_zone() -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
    assert contract.to_datetime(contract.timestamp(moment)) == moment
    with pytest.raises(ValueError, match="no time zone"):
        contract.timestamp(datetime(2026, 1, 2))
