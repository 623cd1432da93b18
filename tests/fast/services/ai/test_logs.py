"""Output of endpoints' and jobs' programs: read while they run and after they ended, by whom, and no more
than a page of it.
"""

import json
import os
from dataclasses import fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from nebius.api.nebius.ai.v1 import (
    EndpointServiceClient,
    RestartEndpointRequest,
    StopEndpointRequest,
)

from neocloud.core.clock import SystemClock
from neocloud.core.contract import Code
from neocloud.engines.base import MAX_LOG_PAGE_LINES
from neocloud.services.ai.logs import KEPT_BYTES, KeptLogs
from neocloud.services.iam.access.tokens import token_issuer
from neocloud.services.iam.rules.roles import allows, smallest_role
from tests.fast.services.ai.cloud import IMAGE, AiCloud
from tests.fast.services.ai.test_endpoints import create as create_endpoint
from tests.fast.services.ai.test_endpoints import spec as endpoint
from tests.fast.services.ai.test_jobs import DAEMON
from tests.fast.services.ai.test_jobs import create as create_job
from tests.fast.services.storage.cloud import AccountCloud

LOGS = "neocloud.ai.v1.LogService"


async def job_log(cloud: AiCloud, job_id: str, **more: Any) -> Any:
    return await cloud.call(f"{LOGS}/ReadJobLog", id=job_id, **more)


async def endpoint_log(cloud: AiCloud, endpoint_id: str, **more: Any) -> Any:
    return await cloud.call(f"{LOGS}/ReadEndpointLog", id=endpoint_id, **more)


async def acting_as(cloud: AiCloud, account_id: str) -> AiCloud:
    issue = token_issuer(cloud.running.store, SystemClock())
    token, _ = await issue(account_id, timedelta(hours=1))
    return replace(cloud, token=token)


def kept_file(cloud: AiCloud, workload_id: str) -> Path:
    return cloud.home / "ai-logs" / f"{workload_id}.json"


@pytest.mark.parametrize("noun", ["endpoints", "jobs"])
def test_reading_what_a_program_prints_needs_a_permission_of_its_own(noun: str) -> None:
    """It may be keys, and these roles see no secrets."""
    permission = f"ai.{noun}.readLog"
    for role in ("viewer", "auditor", "ai.viewer", "compute.editor", "slurm.editor", "inference.editor"):
        assert not allows(role, permission), role
    for role in ("admin", "editor", "ai.editor"):
        assert allows(role, permission), role
    assert smallest_role(permission) == "ai.editor"


async def test_another_project_s_logs_are_answered_like_none(cloud: AiCloud) -> None:
    job_id = await create_job(cloud, container_command="sh -c 'echo secret'")
    await cloud.until(job_id, "COMPLETED")
    people = AccountCloud(**{each.name: getattr(cloud, each.name) for each in fields(AccountCloud)})
    metadata = {"parent_id": cloud.tenant_id, "name": "other"}
    made = await cloud.call(
        "nebius.iam.v2.ProjectService/Create", metadata=metadata, spec={"region": "local"}
    )
    outsider, viewer = await people.account("outsider"), await people.account("viewer")
    for account, role, target in (
        (outsider, "ai.editor", made.resource_id),
        (viewer, "ai.viewer", cloud.project_id),
    ):
        group = await people.group(f"of-{role.replace('.', '-')}-{account[-4:]}")
        await people.join(account, group)
        await people.permit(group, target, role)
    as_outsider, as_viewer = await acting_as(cloud, outsider), await acting_as(cloud, viewer)
    for method in ("ReadJobLog", "ReadEndpointLog"):
        for each in (job_id, job_id[:-1] + ("0" if job_id[-1] != "0" else "1")):
            refused = await as_outsider.refusal(f"{LOGS}/{method}", id=each)
            assert refused.code in (Code.NOT_FOUND, Code.INVALID_ARGUMENT), refused
            assert "secret" not in refused.message
    there = await as_outsider.refusal(f"{LOGS}/ReadJobLog", id=job_id)
    nowhere = await as_outsider.refusal(f"{LOGS}/ReadJobLog", id="aijob-e00none")
    assert there.code is nowhere.code is Code.NOT_FOUND
    assert there.message.replace(job_id, "X") == nowhere.message.replace("aijob-e00none", "X")
    refused = await as_viewer.refusal(f"{LOGS}/ReadJobLog", id=job_id)
    assert refused.code is Code.PERMISSION_DENIED and "such as ai.editor" in refused.message


async def test_a_job_is_not_read_as_an_endpoint(cloud: AiCloud) -> None:
    job_id = await create_job(cloud, container_command="true")
    refused = await cloud.refusal(f"{LOGS}/ReadEndpointLog", id=job_id)
    assert refused.code in (Code.NOT_FOUND, Code.INVALID_ARGUMENT)
    for wrong in ({"tail": 10_001}, {"tail": -1}, {"first_line": -1}):
        assert (await cloud.refusal(f"{LOGS}/ReadJobLog", id=job_id, **wrong)).code is Code.INVALID_ARGUMENT


async def test_a_running_program_is_followed_from_line_to_line(cloud: AiCloud) -> None:
    endpoint_id = await create_endpoint(cloud, endpoint(container_command=DAEMON))
    await cloud.until(endpoint_id, "RUNNING")
    logs: list[str] = cloud.pod(endpoint_id).containers[0].logs
    logs[:] = ["one", "two", "three"]
    page = await endpoint_log(cloud, endpoint_id, tail=2)
    assert list(page.lines) == ["two", "three"] and page.next_line == 3 and not page.is_complete
    logs.append("four")
    more = await endpoint_log(cloud, endpoint_id, first_line=page.next_line, run=page.run)
    assert list(more.lines) == ["four"]
    assert list((await endpoint_log(cloud, endpoint_id, first_line=4, run=page.run)).lines) == []


async def test_a_page_is_bounded(cloud: AiCloud) -> None:
    endpoint_id = await create_endpoint(cloud, endpoint(container_command=DAEMON))
    await cloud.until(endpoint_id, "RUNNING")
    cloud.pod(endpoint_id).containers[0].logs[:] = [str(number) for number in range(25_000)]
    found: list[str] = []
    run = ""
    while page := await endpoint_log(cloud, endpoint_id, first_line=len(found), run=run):
        assert len(page.lines) <= MAX_LOG_PAGE_LINES
        if not page.lines:
            break
        found += page.lines
        run = page.run
    assert found == [str(number) for number in range(25_000)]


@pytest.mark.parametrize(
    ("command", "state", "lines"),
    [
        ("sh -c 'echo loading; echo done'", "COMPLETED", ["loading", "done"]),
        ("sh -c 'echo loading; exit 3'", "FAILED", ["loading"]),
        ("true", "COMPLETED", []),
    ],
)
async def test_the_log_of_a_job_that_ended_stays(
    cloud: AiCloud, command: str, state: str, lines: list[str]
) -> None:
    job_id = await create_job(cloud, container_command=command)
    await cloud.until(job_id, state)
    assert cloud.reference(job_id) not in cloud.engine.world.pods
    page = await job_log(cloud, job_id)
    assert list(page.lines) == lines and page.is_complete
    assert page.next_line == len(lines)
    rest = await job_log(cloud, job_id, first_line=page.next_line, run=page.run)
    assert list(rest.lines) == [] and rest.is_complete
    assert list((await job_log(cloud, job_id, tail=1)).lines) == lines[-1:]
    if state == "FAILED":
        assert "ended with code 3" in page.reason


async def test_a_restart_keeps_the_log_of_the_attempt_before(cloud: AiCloud) -> None:
    job_id = await create_job(cloud, container_command=DAEMON, restart_attempts=1)
    await cloud.until(job_id, "RUNNING")
    cloud.pod(job_id).containers[0].logs[:] = ["out of memory"]
    first = await job_log(cloud, job_id)
    cloud.engine.kill(cloud.reference(job_id), exit_code=9)
    await cloud.when(
        job_id, lambda found: "Attempt 1 failed" in found.status.state_details.message, "RUNNING"
    )
    second = await job_log(cloud, job_id, first_line=first.next_line, run=first.run)
    assert second.run != first.run, "a client that follows sees that another log begins"
    assert "out of memory" not in second.lines
    before = await job_log(cloud, job_id, previous=True)
    assert list(before.lines) == ["out of memory"] and before.run == first.run


async def test_an_endpoint_that_was_stopped_says_what_it_printed_last(cloud: AiCloud) -> None:
    client = EndpointServiceClient(cloud.sdk)
    endpoint_id = await create_endpoint(cloud, endpoint(container_command=DAEMON))
    await cloud.until(endpoint_id, "RUNNING")
    cloud.pod(endpoint_id).containers[0].logs[:] = ["listening"]
    await (await client.stop(StopEndpointRequest(id=endpoint_id))).wait()
    page = await endpoint_log(cloud, endpoint_id)
    assert list(page.lines) == ["listening"] and page.is_complete
    await (await client.restart(RestartEndpointRequest(id=endpoint_id))).wait()
    await cloud.until(endpoint_id, "RUNNING")
    fresh = await endpoint_log(cloud, endpoint_id)
    assert "listening" not in fresh.lines and not fresh.is_complete


async def test_a_log_is_kept_to_a_size_and_goes_with_its_job(cloud: AiCloud) -> None:
    job_id = await create_job(cloud, container_command=DAEMON)
    await cloud.until(job_id, "RUNNING")
    cloud.pod(job_id).containers[0].logs[:] = [f"{number} " + "x" * 1000 for number in range(1000)]
    cloud.engine.kill(cloud.reference(job_id), exit_code=1)
    await cloud.until(job_id, "FAILED")
    page = await job_log(cloud, job_id)
    assert sum(len(line) for line in page.lines) <= KEPT_BYTES
    assert page.lines[-1].startswith("999 ") and page.next_line == 1000
    assert list((await job_log(cloud, job_id, first_line=999, run=page.run)).lines) == [page.lines[-1]]
    file = kept_file(cloud, job_id)
    assert file.stat().st_mode & 0o077 == 0 and file.parent.stat().st_mode & 0o077 == 0
    await cloud.call("nebius.ai.v1.JobService/Delete", id=job_id)
    await cloud.gone(job_id)
    assert not file.exists()


async def test_hostile_lines_are_passed_on_as_text(cloud: AiCloud) -> None:
    """Lines are passed on unchanged: clients that print on a terminal escape them."""
    lines = ["\x1b]0;title\x07", "a\rb", "\u202ereversed", '{"run": "9-9", "lines": []}', "\x00", ""]
    job_id = await create_job(cloud, container_command=DAEMON)
    await cloud.until(job_id, "RUNNING")
    cloud.pod(job_id).containers[0].logs[:] = lines
    assert list((await job_log(cloud, job_id)).lines) == lines
    cloud.engine.kill(cloud.reference(job_id), exit_code=0)
    await cloud.until(job_id, "COMPLETED")
    assert list((await job_log(cloud, job_id)).lines) == lines


async def test_what_cannot_start_says_why(cloud: AiCloud) -> None:
    cloud.engine.faults.unknown_images = {IMAGE}
    job_id = await create_job(cloud, container_command="true")
    await cloud.when(job_id, lambda found: found.status.state_details.message)
    page = await job_log(cloud, job_id)
    assert list(page.lines) == [] and not page.is_complete and page.run == ""
    assert page.reason == (await cloud.get("nebius.ai.v1.Job", job_id)).status.state_details.message


async def test_an_engine_that_does_not_answer_is_no_empty_log(cloud: AiCloud) -> None:
    job_id = await create_job(cloud, container_command=DAEMON)
    await cloud.until(job_id, "RUNNING")
    cloud.engine.faults.unavailable = True
    try:
        refused = await cloud.refusal(f"{LOGS}/ReadJobLog", id=job_id)
    finally:
        cloud.engine.faults.unavailable = False
    assert refused.code is Code.UNAVAILABLE


def test_what_was_kept_is_read_whatever_is_in_the_file(tmp_path: Path) -> None:
    kept = KeptLogs(tmp_path)
    assert kept.read("aijob-e00a") is None
    kept.write("aijob-e00a", "1-1", ["a", "b"], 2)
    file = tmp_path / "ai-logs" / "aijob-e00a.json"
    found = kept.read("aijob-e00a")
    assert found is not None and found.page(0, 0) == (("a", "b"), 2)
    outside = tmp_path / "secret.json"
    outside.write_text(json.dumps({"run": "1-1", "lines": ["secret"], "next_line": 1}))
    for content in ("", "[]", "{", '{"run": 1}', '{"run":"1-1","lines":[1],"next_line":1}', "\xff"):
        file.write_bytes(content.encode("latin-1"))
        assert kept.read("aijob-e00a") is None, content
    file.unlink()
    os.symlink(outside, file)
    assert kept.read("aijob-e00a") is None, "no link is followed"
    kept.remove("aijob-e00a")
    kept.remove("aijob-e00a")
    assert outside.exists() and not file.exists()


def test_a_full_disk_holds_up_no_stop(tmp_path: Path) -> None:
    (tmp_path / "ai-logs").write_text("a file where the folder has to be")
    KeptLogs(tmp_path).write("aijob-e00a", "1-1", ["a"], 1)
    assert KeptLogs(tmp_path).read("aijob-e00a") is None
