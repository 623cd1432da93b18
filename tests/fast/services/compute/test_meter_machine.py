"""The cost of a machine and its disks: BILL-03, FORM-01."""

from datetime import UTC, datetime, timedelta
from typing import Any

from neocloud.messages.nebius.compute.v1 import DiskSpec, InstanceSpec

from neocloud.core import contract
from neocloud.core.store.protocol import HistoryEntry
from neocloud.services.compute import DiskMeter, InstanceMeter
from neocloud.services.compute.types import DISK, INSTANCE
from tests.fast.services.compute.cloud import instance_spec

START = datetime(2026, 1, 1, tzinfo=UTC)


def entry(seconds: int, state: str, kind: str, spec: Any, *, is_deleted: bool = False) -> HistoryEntry:
    at = START + timedelta(seconds=seconds)
    return HistoryEntry(
        "x", kind, "project-e00a", "one", at, state, 1, spec.SerializeToString(), is_deleted=is_deleted
    )


def usage(meter: Any, *history: HistoryEntry, end: int = 1000) -> list[tuple[str, int, int]]:
    records = meter(history, START, START + timedelta(seconds=end))
    return [(record.sku, record.units, record.seconds) for record in records]


def machine(preset: str = "2vcpu-4gb", **spec: Any) -> Any:
    resources = {"platform": "cpu-local", "preset": preset}
    return contract.from_dict(InstanceSpec, instance_spec(resources=resources, **spec))


def test_a_machine_costs_while_it_runs() -> None:
    history = [
        entry(0, "STARTING", INSTANCE, machine()),
        entry(10, "RUNNING", INSTANCE, machine()),
        entry(70, "STOPPING", INSTANCE, machine()),
        entry(80, "STOPPED", INSTANCE, machine()),
        entry(500, "STARTING", INSTANCE, machine()),
        entry(510, "RUNNING", INSTANCE, machine("1vcpu-1gb")),
        entry(520, "DELETING", INSTANCE, machine("1vcpu-1gb")),
        entry(530, "", INSTANCE, machine("1vcpu-1gb"), is_deleted=True),
    ]
    assert usage(InstanceMeter(), *history) == [
        ("cpu-local.vcpu", 2, 60),
        ("cpu-local.ram", 4, 60),
        ("cpu-local.vcpu", 1, 10),
        ("cpu-local.ram", 1, 10),
    ]


def test_a_preemptible_machine_has_prices_of_its_own() -> None:
    spec = machine(preemptible={"on_preemption": "STOP"}, recovery_policy="FAIL")
    assert usage(InstanceMeter(), entry(0, "RUNNING", INSTANCE, spec), end=5) == [
        ("cpu-local.vcpu.preemptible", 2, 5),
        ("cpu-local.ram.preemptible", 4, 5),
    ]


def test_a_disk_costs_from_ready_until_its_deletion_is_asked_for() -> None:
    spec = contract.from_dict(DiskSpec, {"type": "NETWORK_SSD_IO_M3", "size_gibibytes": 93})
    history = [
        entry(0, "CREATING", DISK, spec),
        entry(5, "READY", DISK, spec),
        entry(65, "DELETING", DISK, spec),
    ]
    assert usage(DiskMeter(), *history) == [("disk.network-ssd-io-m3", 93, 60)]
