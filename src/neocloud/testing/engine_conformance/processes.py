# pyright: standard
"""Conformance of processes in pods: commands, logs, probes, ends and their events."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from neocloud.engines.base import (
    MAX_LINE_BYTES,
    MAX_OUTPUT_BYTES,
    EngineError,
    EngineEvent,
    EventKind,
    ExecResult,
    LogPage,
    OutputTooLarge,
    PodPhase,
)
from neocloud.testing.engine_space import PATIENCE_SECONDS, SERVE, Bench, Space
from neocloud.testing.waiting import until


@pytest.mark.asyncio(loop_scope="module")
class ProcessConformance:
    async def test_exec_gives_output_error_output_and_exit_code(self, space: Space) -> None:
        await space.apply(space.pod("one"))
        result = await space.run("one", "sh", "-c", "echo out; echo err >&2; exit 3")
        assert result == ExecResult(3, b"out\n", b"err\n")
        assert (await space.run("one", "no-such-program")).exit_code == 127

    async def test_exec_passes_all_of_stdin(self, space: Space) -> None:
        await space.apply(space.pod("one"))
        data = bytes(range(256)) * 4096
        assert (await space.run("one", "cat", stdin=data)).stdout == data

    async def test_a_command_need_not_read_its_stdin(self, space: Space) -> None:
        await space.apply(space.pod("one"))
        ended = await space.run("one", "sh", "-c", "exit 3", stdin=b"x" * 1_000_000)
        assert ended.exit_code == 3

    async def test_exec_ends_a_command_that_takes_too_long(self, space: Space) -> None:
        await space.apply(space.pod("one"))
        with pytest.raises(EngineError, match="did not finish"):
            await space.run("one", "sleep", "3000", timeout_seconds=0.5)

    async def test_exec_kills_a_command_that_prints_more_than_is_taken(self, space: Space) -> None:
        await space.apply(space.pod("one"))
        await space.run("one", "tee", "/tmp/file", stdin=b"x" * 100_000)
        taken = await space.run("one", "cat", "/tmp/file", max_output_bytes=100_000)
        assert taken.stdout == b"x" * 100_000
        for script in ("cat /tmp/file", "cat /tmp/file >&2"):
            with pytest.raises(OutputTooLarge, match="more than 99999 bytes"):
                await space.run("one", "sh", "-c", script, max_output_bytes=99_999)

    async def test_exec_takes_a_mebibyte_unless_told_otherwise(self, space: Space) -> None:
        await space.apply(space.pod("one"))
        with pytest.raises(OutputTooLarge):
            await space.run("one", "cat", stdin=bytes(MAX_OUTPUT_BYTES + 1))

    async def test_exec_says_what_is_missing(self, space: Space) -> None:
        with pytest.raises(EngineError, match="does not exist"):
            await space.run("nobody", "true")
        await space.apply(space.pod("one"))
        with pytest.raises(EngineError, match="no container"):
            await space.run("one", "true", container="other")

    async def test_logs_are_lines_oldest_first(self, space: Space) -> None:
        script = "echo one; echo two; echo three; exec sleep 3600"
        await space.apply(space.pod("one", ["sh", "-c", script]))
        await until(lambda: space.lines("one"), holds=lambda lines: lines == ["one", "two", "three"])
        assert await space.lines("one", tail=2) == ["two", "three"]

    async def test_pages_of_a_log_go_on_where_the_last_one_ended(self, space: Space) -> None:
        script = "echo one; echo two; echo three; exec sleep 3600"
        await space.apply(space.pod("one", ["sh", "-c", script]))
        pod = space.reference("Pod", "one")
        page = await until(lambda: space.engine.log_page(pod), holds=lambda page: len(page.lines) == 3)
        assert page == LogPage(("one", "two", "three"), 3)
        assert await space.engine.log_page(pod, tail=2) == LogPage(("two", "three"), 3)
        assert await space.engine.log_page(pod, first_line=1) == LogPage(("two", "three"), 3)
        assert await space.engine.log_page(pod, first_line=3) == LogPage((), 3)
        assert await space.engine.log_page(pod, first_line=9) == page

    async def test_a_line_of_a_log_is_of_limited_length(self, space: Space) -> None:
        text = "x" * (3 * MAX_LINE_BYTES)
        await space.apply(space.pod("one", ["sh", "-c", f"echo {text}; exec sleep 3600"]))
        pod = space.reference("Pod", "one")
        page = await until(lambda: space.engine.log_page(pod), holds=lambda page: len(page.lines) >= 3)
        assert page.lines == (text[:MAX_LINE_BYTES],) * 3
        assert await space.lines("one") == [text[:MAX_LINE_BYTES]] * 3

    async def test_followed_logs_end_with_the_container(self, space: Space) -> None:
        script = "echo one; exec sleep 3600"
        await space.apply(space.pod("one", ["sh", "-c", script], restartPolicy="Never"))
        following = asyncio.create_task(space.lines("one", follow=True))
        await space.kill("one")
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await following == ["one"]

    async def test_pod_is_ready_once_its_probe_answers(self, space: Space) -> None:
        probe = {"exec": {"command": ["cat", "/tmp/go"]}, "periodSeconds": 1}
        await space.apply(space.pod("one", container={"readinessProbe": probe}))
        pod = await space.until("one", lambda pod: pod.phase is PodPhase.RUNNING)
        assert not pod.ready
        await space.run("one", "touch", "/tmp/go")
        await space.until("one", lambda pod: pod.ready)

    async def test_port_probe_follows_the_server(self, space: Space) -> None:
        probe = {"tcpSocket": {"port": 8080}}
        await space.apply(
            space.pod("up", SERVE, container={"readinessProbe": probe}),
            space.pod("down", container={"readinessProbe": probe}),
        )
        await space.until("up", lambda pod: pod.ready)
        down = await space.seen("down")
        assert down and not down.ready

    async def test_new_engine_adopts_what_runs(self, space: Space, bench: Bench) -> None:
        probe = {"readinessProbe": {"tcpSocket": {"port": 8080}}}
        pod = space.pod("one", SERVE, container=probe, labels={"role": "worker"})
        await space.apply(pod)
        await space.run("one", "tee", "/tmp/mark", stdin=b"here")
        before = await space.until("one", lambda pod: pod.ready)
        space.engine = bench.reopened()
        try:
            assert await space.seen("one") == before
            await space.apply(space.namespace(), pod)
            assert await space.read("one", "/tmp/mark") == b"here"
            await space.remove("Pod", "one")
            assert await space.seen("one") is None
        finally:
            await space.engine.close()

    async def test_killed_pod_tells_and_comes_back(self, space: Space) -> None:
        await space.apply(space.pod("one"))
        died = asyncio.create_task(_next(space.engine.events(), EventKind.POD_DIED))
        await space.kill("one")
        event = await died
        assert event.pod == space.reference("Pod", "one")
        assert event.exit_code not in (0, None)
        pod = await space.until("one", lambda pod: pod.ready and pod.restart_count > 0)
        assert pod.restart_count == 1
        assert pod.last_exit == event.exit_code, "how it ended is known while it runs again"

    async def test_pod_that_never_restarts_stays_ended(self, space: Space) -> None:
        manifests = [
            space.pod("good", ["true"], restartPolicy="Never"),
            space.pod("bad", ["sh", "-c", "exit 3"], restartPolicy="Never"),
        ]
        for _ in range(2):
            await space.apply(*manifests)
            await space.until("good", lambda pod: pod.phase is PodPhase.SUCCEEDED)
            bad = await space.until("bad", lambda pod: pod.phase is PodPhase.FAILED)
            assert "3" in bad.message and not bad.ready

    async def test_events_tell_of_start_and_removal(self, space: Space) -> None:
        events = space.engine.events()
        await space.apply(space.pod("one"))
        assert (await _next(events, EventKind.POD_STARTED)).pod.name == "one"
        await space.remove("Pod", "one")
        assert (await _next(events, EventKind.POD_REMOVED)).pod.name == "one"


async def _next(events: AsyncIterator[EngineEvent], kind: EventKind) -> EngineEvent:
    async with asyncio.timeout(PATIENCE_SECONDS):
        async for event in events:
            if event.kind is kind:
                return event
    raise AssertionError("the stream of events ended")
