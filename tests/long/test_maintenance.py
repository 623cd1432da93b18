"""Maintenance of a real host: drained workers, stopped machines, a restart, and all resume: VPC-04."""

import logging
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from neocloud.client.errors import ClientError
from neocloud.testing.waiting import wait_until
from tests.e2e.cloud import Cloud
from tests.e2e.cluster import Cluster
from tests.e2e.test_machines import BOOT_SECONDS, COMPUTE, ONE_BOOT, Machine

logger = logging.getLogger(__name__)
REASON = "Replace a power supply"
NOTICE = timedelta(seconds=40)


def worker(cloud: Cloud) -> dict[str, Any]:
    """Return what the cluster's status says of its only worker."""
    return next(each for each in cloud.clusters() if each["metadata"]["name"] == "drained")["status"][
        "nodes"
    ][0]


def event_of(cloud: Cloud, machine: Machine) -> Any:
    return cloud.call(f"{COMPUTE}.MaintenanceService/GetByInstance", {"instance_id": machine.id})


def is_drained(cloud: Cloud, since: str = "") -> bool:
    """Return whether the worker takes no new jobs, of another start than `since`."""
    seen = worker(cloud)
    return "DRAIN" in seen.get("slurm_state", "") and seen.get("started_at") != since


def test_a_host_is_maintained(cloud: Cloud) -> None:
    Cluster.create(cloud, "drained", "--workers", "1", "--preset", "1vcpu-4gb")
    recovers = Machine.create(cloud, "recovers")
    fails = Machine.create(cloud, "fails", recovery_policy="FAIL")
    try:
        boot = recovers.run(ONE_BOOT)
        start = datetime.now(UTC) + NOTICE
        words = ("--start-at", start.isoformat(), "--drain-before", "3600s", "--reason", REASON)
        cloud.neo("operator", "maintenance", "create", "supply", *words)
        wait_until(lambda: is_drained(cloud), "the worker takes no new jobs")
        shown = event_of(cloud, recovers)
        assert shown.spec.is_planned and shown.status.maintenance_reason == REASON
        assert shown.status.sla_deadline_ts.ToDatetime(UTC) == start
        assert recovers.state == "RUNNING" and datetime.now(UTC) < start, "only announced"
        assert REASON in cloud.neo("compute", "maintenance", "list-active").stdout

        for each in (recovers, fails):
            each.until("STOPPED")
            assert not each.qemu() and not each.seen.spec.stopped
        logger.warning("all stopped %.1f s after the start", (datetime.now(UTC) - start).total_seconds())
        with pytest.raises(ClientError, match=REASON):
            recovers.change("Start")
        assert "UNDER_WAY" in cloud.neo("operator", "maintenance", "list").stdout

        before = worker(cloud)["started_at"]
        cloud.neo("down")
        cloud.up()
        assert (recovers.state, fails.state) == ("STOPPED", "STOPPED")
        wait_until(
            lambda: is_drained(cloud, before), "the worker is there again, drained", seconds=BOOT_SECONDS
        )
        ended = time.monotonic()
        cloud.neo("operator", "maintenance", "delete", "supply", "--yes")
        recovers.until("RUNNING")
        logger.warning("runs %.1f s after the end", time.monotonic() - ended)
        assert recovers.run(ONE_BOOT) != boot
        assert fails.state == "STOPPED"
        wait_until(lambda: not is_drained(cloud), "the worker takes jobs", seconds=BOOT_SECONDS)
        fails.change("Start")
        fails.until("RUNNING")
    finally:
        for each in (recovers, fails):
            each.delete()
        cloud.neo("slurm", "cluster", "delete", "drained", "--yes")
