"""One line of the log for each thing that the fleet decides on a node, with the node and the reason."""

import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from neocloud.core.logs import add_bound
from neocloud.fleet.nodes import events as e
from neocloud.fleet.nodes.events import Phase, Status, Suite
from neocloud.services.fleet.logs.decision_log import log_breakers, log_decisions
from neocloud.testing.waiting import until
from tests.fast.services.fleet.test_fleet import NODES, WatchedCloud
from tests.fast.services.slurm.cloud import fake_cloud


class Lines(logging.Handler):
    """The records of the decision log, as a line of text would show them."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.addFilter(add_bound)
        self.found: list[tuple[str, str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append((record.levelname, getattr(record, "resource", ""), record.getMessage()))


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Lines:
    handler = Lines()
    logger = logging.getLogger("neocloud.services.fleet.logs.decision_log")
    monkeypatch.setattr(logger, "handlers", [handler])
    caplog.set_level(logging.INFO, logger.name)  # forgets, too, what the logger was found to leave out
    return handler


@pytest.fixture
async def cloud(tmp_path: Path) -> AsyncIterator[WatchedCloud]:
    async with fake_cloud(tmp_path) as running:
        yield WatchedCloud(**vars(running))


async def test_a_lost_worker_is_a_few_lines_from_drain_to_return(cloud: WatchedCloud, lines: Lines) -> None:
    await cloud.watched(2, 0)
    lines.found.clear()
    cloud.kill("worker-0")
    node_id = f"{cloud.cluster_id}/worker-0"

    def of_node() -> list[str]:
        return [text for _, resource, text in lines.found if resource == node_id]

    await until(lambda: any(text.startswith("returned to service") for text in of_node()), seconds=30)
    assert of_node()[0].startswith("drained by") and "(started again without being asked)" in of_node()[0]
    assert {level for level, *_ in lines.found} == {"INFO"}


async def test_what_an_operator_does_has_a_line_too(cloud: WatchedCloud, lines: Lines) -> None:
    await cloud.watched(1, 0)
    lines.found.clear()
    node_id = f"{cloud.cluster_id}/worker-0"
    await cloud.call(f"{NODES}/Drain", id=node_id, reason="swap cable")
    (line, *_) = lines.found
    assert (
        line[:2] == ("INFO", node_id)
        and line[2].startswith("drained by operator:")
        and "swap cable" in line[2]
    )


def test_each_decision_has_words_and_what_nodes_do_themselves_has_none(lines: Lines) -> None:
    drain = e.DrainRequested(1.0, "worker-1", "controller", "verdict-1", "gpu")
    found = (
        drain,
        e.SpareReserved(1.0, "worker-2", "worker-1"),
        e.Moved(1.0, "worker-1", Phase.TRIAGE, "controller", "no step is left"),
        e.VerificationStarted(1.0, "worker-1", Suite.FULL, 2, 9.0),
        e.VerificationEnded(1.0, "worker-1", 2, passed=False),
        e.Verdict(1.0, "worker-1", "v", "gpu", Status.FAIL, "boot", "0", "1", "agent", "1"),
        e.Booted(1.0, "worker-1", "boot"),
    )
    log_decisions("cluster-1", found, {drain: "gpu: 0 (threshold 1, agent)"})
    assert [(resource, text) for _, resource, text in lines.found] == [
        ("cluster-1/worker-1", "drained by controller: verdict-1 (gpu) (gpu: 0 (threshold 1, agent))"),
        ("cluster-1/worker-2", "spare reserved in place of worker-1"),
        ("cluster-1/worker-1", "moved to triage by controller: no step is left"),
        ("cluster-1/worker-1", "verification 2 starts: full"),
        ("cluster-1/worker-1", "verification 2 failed"),
    ]


def test_breakers_that_open_and_close_have_lines(lines: Lines) -> None:
    log_breakers("pool-1", [("cluster", "")], [("cluster", ""), ("check", "gpu")])
    log_breakers("pool-1", [("cluster", "")], [])
    assert [(resource, text) for _, resource, text in lines.found] == [
        ("pool-1", "breaker check gpu opened: too many drains or failures at once"),
        ("pool-1", "breaker cluster closed"),
    ]
