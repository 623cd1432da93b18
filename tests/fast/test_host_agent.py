"""The agent of this machine as a process of the control plane: the real program on this machine."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from neocloud.control_plane.host_agent import LocalHost, agent_child, stop_host_agent
from neocloud.core.clock import SystemClock
from neocloud.core.process import Process, boot_id
from neocloud.fleet.nodes.events import Status, Verdict
from neocloud.services.fleet.node_agents import AGENT, host_agents
from neocloud.services.fleet.public import HostsUnreachable
from neocloud.testing.waiting import until

SECONDS = 120.0
"""An agent and its probes start with the lowest priority."""
HANGS = ("sh", "-c", "exec sleep 600")


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[LocalHost]:
    made = LocalHost(tmp_path, SystemClock(), name="gpu-1", interval=1.0, hung_after=SECONDS)
    running = asyncio.create_task(made.run())
    yield made
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert agent_child(tmp_path).find() is None, "it ends with the control plane"


async def process_of(home: Path, *, but: int = 0) -> Process:
    async def found() -> Process | None:
        process = agent_child(home).find()
        return process if process is not None and process.pid != but else None

    process = await until(found, seconds=SECONDS)
    assert process is not None
    return process


async def test_the_real_agent_is_asked_by_the_path_of_workers_and_started_again(
    host: LocalHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("neocloud.services.fleet.node_agents.ASK_AGAIN", 0.2)
    process = await process_of(tmp_path)
    await until(
        lambda: os.getpriority(os.PRIO_PROCESS, process.pid) == 19, "lowest priority", seconds=SECONDS
    )
    agents = host_agents(host, SystemClock(), changed=lambda _: None)
    (known,) = await host.look()
    assert (known.name, known.boot) == ("gpu-1", boot_id())

    async def answers() -> list[Verdict]:
        now = SystemClock().now().timestamp()
        found = await agents.verdicts("hosts", [known], now)
        # Its records come a moment before what it says now: until then it has not checked yet.
        is_there = any(each.check == AGENT and each.status is Status.PASS for each in found)
        return [*found] if is_there else []

    found = await until(answers, seconds=SECONDS)
    assert {each.node for each in found} == {"gpu-1"} and {each.boot for each in found} == {known.boot}
    assert {each.check for each in found} >= {"disk_full", "load_per_cpu", "probe.kernel_log"}, (
        "all of the host, not only what a pod may say"
    )
    agents.recorded("hosts", ["gpu-1"], lambda check: "shadow")
    agents.request("hosts", "gpu-1")
    acknowledged = tmp_path / "agent" / "spool" / "acknowledged"

    async def is_acknowledged() -> bool:
        await answers()
        return acknowledged.exists()

    await until(is_acknowledged, seconds=SECONDS)
    process.send(signal.SIGKILL)
    again = await process_of(tmp_path, but=process.pid)
    assert again.pid != process.pid and host._child.deaths.restarts == 1
    agents.forget("hosts")


async def test_one_that_was_left_behind_is_ended(tmp_path: Path) -> None:
    """The control plane was killed."""
    child = agent_child(tmp_path)
    child.start(["sleep", "600"])
    assert child.find() is not None
    await stop_host_agent(tmp_path)
    assert child.find() is None


async def test_a_hung_agent_is_ended_and_no_other_host_is_answered_for(tmp_path: Path) -> None:
    host = LocalHost(tmp_path, SystemClock(), name="gpu-1", command=HANGS, hung_after=0.2)
    running = asyncio.create_task(host.run())
    first = await process_of(tmp_path)
    second = await process_of(tmp_path, but=first.pid)
    assert second.pid != first.pid, "it said nothing"
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    with pytest.raises(HostsUnreachable, match="no host other is known"):
        await host.ask("other", after=0, of="", inventory="", seconds=1)
