"""A cluster from create to READY, by `neo` and by the official SDK, and its readiness checks."""

from collections import Counter
from pathlib import Path
from typing import Any

from nebius.aio.request import Request
from nebius.api.nebius.common.v1 import GetOperationRequest, OperationServiceClient
from nebius.sdk import SDK

from neocloud.core import contract
from neocloud.testing.waiting import until
from tests.e2e.cloud import Cloud
from tests.e2e.cluster import Cluster, user_key

SERVICE = "neocloud.slurm.v1.ClusterService"


def test_neo_creates_a_cluster_and_says_how_long_it_took(bank: Cluster) -> None:
    """SLURM-01."""
    assert "Cluster bank is READY after" in bank.creation.stdout
    assert bank.state == "READY"
    assert bank.node_states() == {"worker-0": "idle", "worker-1": "idle"}


def test_a_second_create_is_told_that_the_name_is_taken_and_reuse_takes_what_is_there(bank: Cluster) -> None:
    said = bank.cloud.neo("slurm", "cluster", "create", "bank", code=7)
    assert "bank" in said.stderr and "Traceback" not in said.stderr
    reused = bank.cloud.neo("slurm", "cluster", "create", "bank", "--reuse")
    assert "already exists" in reused.stdout


async def test_the_official_sdk_creates_gets_and_deletes_a_cluster(cloud: Cloud) -> None:
    """SLURM-01: our messages travel over the official SDK's channel, sign-in and operations."""
    sdk = cloud.sdk()
    try:
        (node_set,) = [{"name": "worker", "platform": "cpu-local", "preset": "1vcpu-1gb", "count": 1}]
        keys = [user_key(cloud).with_suffix(".pub").read_text()]
        metadata = {"parent_id": cloud.project_id, "name": "by-sdk"}
        spec = {"node_sets": [node_set], "login": {"ssh_public_keys": keys}}
        created = await call(sdk, f"{SERVICE}/Create", metadata=metadata, spec=spec)
        await finished(sdk, created.id)
        found = await call(sdk, f"{SERVICE}/GetByName", parent_id=cloud.project_id, name="by-sdk")
        assert found.metadata.id == created.resource_id
        assert [node.name for node in found.status.nodes] == ["worker-0"]
        assert found.status.slurm_version.startswith("24.11")
        deleted = await call(sdk, f"{SERVICE}/Delete", id=found.metadata.id)
        await finished(sdk, deleted.id)
        listed = await call(sdk, f"{SERVICE}/List", parent_id=cloud.project_id)
        assert "by-sdk" not in [item.metadata.name for item in listed.items]
    finally:
        await sdk.close()
    assert found.metadata.id not in cloud.podman("ps", "--all", "--format={{.Names}}")


async def call(sdk: SDK, path: str, **fields: Any) -> Any:
    """One of our methods, sent as the SDK's generated clients send theirs."""
    method = contract.method(path)
    service, _, verb = method.path.partition("/")
    message = contract.from_dict(method.input, fields)
    return await Request(sdk, service, verb, message, method.output)


async def finished(sdk: SDK, operation_id: str, *, seconds: float = 60.0) -> None:
    operations = OperationServiceClient(sdk)

    async def look() -> Any:
        return await operations.get(GetOperationRequest(id=operation_id))

    operation = await until(look, holds=lambda seen: seen.done(), seconds=seconds, poll_seconds=0.1)
    assert operation.successful(), operation.status()


def test_every_check_of_a_healthy_cluster_passes_except_gpus_which_are_not_run(bank: Cluster) -> None:
    bank.wait_until_idle()
    results = bank.cloud.neo_json("slurm", "cluster", "check", "bank")
    verdicts = {(item.get("node", ""), item["check"]): item["verdict"] for item in results}
    failed = [item for item in results if item["verdict"] == "fail"]
    assert failed == []
    assert {check for (_, check), verdict in verdicts.items() if verdict == "not_run"} == {"gpu"}
    assert verdicts["", "job /tmp and /dev/shm"] == "pass"
    for check in ("job processes", "home size"):
        assert verdicts["", check] == "not_enforced"
    messages = {item["check"]: item.get("message", "") for item in results}
    for check in ("job memory", "job CPUs"):  # SJOB-04
        if Path("/sys/fs/cgroup/cgroup.controllers").exists():
            assert verdicts["", check] == "pass", messages[check]
        else:
            assert verdicts["", check] == "not_enforced"
            assert "The machine has control groups of version 1. " in messages[check]
    checks = Counter(check for _, check in verdicts)
    for check in ("cpu", "memory", "gpu", "shared root write", "shared root read", "clock skew", "slurm"):
        assert checks[check] == 2, check
    for size in (1, 16, 128):
        assert verdicts["", f"all-reduce {size} MiB"] == "pass"
    assert verdicts["worker-1", "shared file"] == "pass"
    measured = [item for item in results if item["verdict"] == "pass"]
    assert all(item["measured"] and item["threshold"] for item in measured)


def test_a_failing_node_is_drained_with_the_reason_and_resumed_by_the_next_passing_check(
    bank: Cluster,
) -> None:
    """SLURM-19: the node loses half its CPUs, and later has them again."""
    container = bank.container("worker-1")
    bank.cloud.podman("update", "--cpus=1", container)
    try:
        said = bank.cloud.neo("slurm", "cluster", "check", "bank", code=1)
        assert "1 fail" in said.stdout and "(drained)" in said.stdout
        reason = bank.ssh("sinfo --noheader --nodes=worker-1 --partition=main --format='%T|%200E'")
        assert reason.startswith("drained|[neocloud] readiness: cpu 1 vCPU")
        assert bank.node_states()["worker-0"] == "idle"
        assert bank.run_job("hostname") == "worker-0"
    finally:
        bank.cloud.podman("update", "--cpus=2", container)
    bank.cloud.neo("slurm", "cluster", "check", "bank")
    bank.wait_until_idle()
