"""Hours of replicas, in whole seconds, and only where hours are charged."""

from datetime import UTC, datetime, timedelta

from neocloud.messages.neocloud.inference.v1 import DeploymentSpec, ReplicaReservationSpec

from neocloud.core.store.protocol import HistoryEntry
from neocloud.services.inference import ReservationMeter
from neocloud.services.inference.types import REPLICA_RESERVATION, RESERVATION_HELD, RESERVATION_STOPPED

START = datetime(2026, 11, 1, tzinfo=UTC)
END = START + timedelta(hours=1)


def entry(
    seconds: int,
    state: str,
    *,
    charge: DeploymentSpec.Charge | str = DeploymentSpec.BY_HOUR,
    is_deleted: bool = False,
):
    spec = ReplicaReservationSpec(deployment_id="d", platform="cpu-local", preset="2vcpu-4gb", charge=charge)
    at = START + timedelta(seconds=seconds)
    return HistoryEntry(
        "inferencereservation-e00one",
        REPLICA_RESERVATION,
        "project-e00one",
        "d.replica-0",
        at,
        state,
        1,
        spec.SerializeToString(),
        is_deleted=is_deleted,
    )


def charged(*history: HistoryEntry) -> dict[str, int]:
    found: dict[str, int] = {}
    for record in ReservationMeter()(history, START, END):
        found[record.sku] = found.get(record.sku, 0) + record.unit_seconds
    return found


def test_a_replica_costs_its_shape_while_it_has_a_place() -> None:
    history = (entry(60, RESERVATION_HELD), entry(160, RESERVATION_HELD, is_deleted=True))
    assert charged(*history) == {"cpu-local.vcpu": 200, "cpu-local.ram": 400}


def test_nobody_pays_while_the_cloud_is_stopped() -> None:
    assert charged(entry(0, RESERVATION_HELD), entry(10, RESERVATION_STOPPED)) == {
        "cpu-local.vcpu": 20,
        "cpu-local.ram": 40,
    }


def test_who_pays_for_tokens_pays_for_no_hours() -> None:
    assert charged(entry(0, RESERVATION_HELD, charge=DeploymentSpec.BY_TOKEN)) == {}
