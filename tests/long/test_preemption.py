"""Preemptible machines on a real cloud give way to machines on demand, within the promised time: CMP-15.

Each machine has the largest shape that there is capacity for, so that there is none for a second one.
"""

import logging
import os
import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from neocloud.client.errors import ClientError
from neocloud.services.compute.catalogue import platforms
from neocloud.services.compute.types import GRACE_SECONDS
from neocloud.testing.waiting import wait_until
from tests.e2e.cloud import Cloud
from tests.e2e.test_machines import BOOT_SECONDS, COMPUTE, ONE_BOOT, Machine

logger = logging.getLogger(__name__)

SHAPES = sorted(
    platforms()["cpu-local"].presets.values(),
    key=lambda shape: (shape.memory_mib, -shape.vcpu),
    reverse=True,
)
PREEMPTIBLE = {"preemptible": {"on_preemption": "STOP"}, "recovery_policy": "FAIL"}
DEAF = "printf '#!/bin/sh\\nexec sleep 9999\\n' >/etc/init.d/power-button; killall dd; true"
"""Let nothing in the guest listen to the power button any more."""
LATE_SECONDS = 20.0
"""How much later than at its deadline a machine may be seen as stopped, on a busy host."""


@contextmanager
def largest(cloud: Cloud, name: str) -> Iterator[tuple[Machine, dict[str, str]]]:
    """Yield a preemptible machine of the largest shape that there is capacity for, once it runs."""
    for shape in SHAPES:
        resources = {"platform": shape.platform, "preset": shape.name}
        try:
            machine = Machine.request(cloud, name, resources=resources, **PREEMPTIBLE)
            break
        except ClientError as error:
            assert error.code == "RESOURCE_EXHAUSTED", error
    else:
        raise AssertionError("there is no capacity for any machine")
    try:
        machine.until("RUNNING")
        yield machine, resources
    finally:
        machine.delete()


def event_of(cloud: Cloud, machine: Machine) -> Any:
    return cloud.call(f"{COMPUTE}.MaintenanceService/GetByInstance", {"instance_id": machine.id})


def test_a_preemptible_machine_gives_way_to_one_on_demand(cloud: Cloud) -> None:
    web = None
    with largest(cloud, "spot") as (spot, shape):
        spot.run("true")
        asked_at = time.monotonic()
        web = Machine.request(cloud, "web", resources=shape)
        try:
            announced = event_of(cloud, spot)
            assert "Preempted" in announced.status.maintenance_reason and not announced.spec.is_planned
            wait_until(
                lambda: spot.state == "STOPPED" or "for spot to stop (preemptible), until" in web.progress,
                "the request says why it waits",
            )
            wait_until(lambda: spot.state == "STOPPED", "the preemptible machine stops", seconds=BOOT_SECONDS)
            stopped_after = time.monotonic() - asked_at
            assert not spot.qemu()
            web.until("RUNNING")
            running_after = time.monotonic() - asked_at
            logger.warning(
                "request to preempted: %.1f s; request to RUNNING: %.1f s", stopped_after, running_after
            )
            assert spot.state == "STOPPED" and not spot.seen.spec.stopped
            reason = cloud.call("neocloud.compute.v1.MachineService/Get", {"instance_id": spot.id}).reason
            assert "preempted at" in reason
            assert "Preempted" in cloud.neo("compute", "maintenance", "list-active").stdout
        finally:
            web.delete()


def requested(cloud: Cloud, resources: dict[str, str], names: Sequence[str]) -> list[Machine]:
    """Request machines of these names at the same time, and return those that were admitted."""

    def ask(name: str) -> Machine | None:
        try:
            return Machine.request(cloud, name, resources=resources)
        except ClientError as error:
            assert error.code == "RESOURCE_EXHAUSTED", error
            return None

    with ThreadPoolExecutor() as threads:
        return [each for each in threads.map(ask, names) if each is not None]


def test_a_guest_that_ignores_its_power_button_has_its_minute_and_is_killed_then(cloud: Cloud) -> None:
    """Two requests want the one machine, and the server is killed during the notice."""
    with largest(cloud, "spot") as (spot, shape):
        spot.run(DEAF)
        boot = spot.run(ONE_BOOT)
        (web,) = requested(cloud, shape, ("web-a", "web-b"))
        try:
            status = event_of(cloud, spot).status
            created = status.created_at.ToDatetime(UTC)
            deadline = status.sla_deadline_ts.ToDatetime(UTC)
            assert (deadline - created).total_seconds() == pytest.approx(GRACE_SECONDS, abs=1)

            os.kill(cloud.server["pid"], signal.SIGKILL)
            cloud.up()
            assert event_of(cloud, spot).status.sla_deadline_ts == status.sla_deadline_ts
            assert spot.run(ONE_BOOT) == boot, "it may use its minute"
            assert spot.state == "STOPPING" and web.state == "STARTING"

            left = (deadline - datetime.now(UTC)).total_seconds()
            wait_until(partial(_has_stopped, spot), "it is killed", seconds=left + LATE_SECONDS)
            stopped = datetime.now(UTC)
            assert stopped >= deadline, "no earlier than promised"
            assert not spot.qemu()
            web.until("RUNNING")
            running = datetime.now(UTC)
            logger.warning(
                "ignored: request to killed %.1f s, to RUNNING %.1f s",
                (stopped - created).total_seconds(),
                (running - created).total_seconds(),
            )
        finally:
            web.delete()


def _has_stopped(machine: Machine) -> bool:
    return machine.state == "STOPPED"
