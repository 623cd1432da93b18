"""Each run ends in one log line; it is shown only when something has changed."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from neocloud.core import contract
from neocloud.core.logs import add_bound
from neocloud.core.reconcile import Worker
from neocloud.core.reconcile.reconciler import Failed
from tests.fast.core.reconcile.test_worker import ID, ready
from tests.fast.core.reconcile.toy_reconcilers import Cloud

LOGGER = "neocloud.core.reconcile.run"


@pytest.fixture(autouse=True)
def _bound_fields(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Show the test the fields that handlers of the program show."""
    caplog.handler.addFilter(add_bound)
    yield
    caplog.handler.removeFilter(add_bound)


def lines(caplog: pytest.LogCaptureFixture, resource_id: str = ID) -> list[logging.LogRecord]:
    return [each for each in caplog.records if getattr(each, "resource", "") == resource_id]


async def test_a_change_of_state_is_logged_with_its_fields(
    cloud: Cloud, worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    await cloud.requests.create(count=1)
    await cloud.clock.run_until(lambda: ready(cloud))
    waiting, done = lines(caplog)
    assert (waiting.levelname, waiting.__dict__["result"]) == ("INFO", "waiting")
    assert "Make the file system" in waiting.getMessage()
    fields = {name: done.__dict__[name] for name in ("kind", "attempt", "result")}
    assert fields == {"kind": "neocloud.slurm.v1.Cluster", "attempt": 1, "result": "done"}
    assert done.__dict__["duration_ms"] >= 200
    assert f"{ID}: READY after" in done.getMessage()


async def test_runs_that_a_request_causes_carry_its_id_until_it_is_done(
    cloud: Cloud, worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, LOGGER)
    await cloud.requests.create(count=1)
    await cloud.clock.run_until(lambda: ready(cloud))
    caused = {(each.__dict__["kind"], each.__dict__.get("request_id", "")) for each in caplog.records}
    request = "request-create-bank"
    assert caused == {("neocloud.slurm.v1.Cluster", request), ("nebius.compute.v1.Filesystem", request)}
    await cloud.clock.advance(1)
    caplog.clear()
    worker.enqueue(ID)
    await cloud.clock.advance(1)
    assert lines(caplog)
    assert not any("request_id" in each.__dict__ for each in caplog.records)
    caplog.clear()
    await cloud.requests.scale(ID, 2)
    await cloud.clock.run_until(lambda: any("READY" in each.getMessage() for each in lines(caplog)))
    assert {each.__dict__["request_id"] for each in lines(caplog)} == {"request-update-bank"}


async def test_an_idle_cloud_logs_nothing(
    cloud: Cloud, worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    await cloud.requests.create(count=1)
    await cloud.clock.run_until(lambda: ready(cloud))
    await cloud.clock.advance(1)
    caplog.set_level(logging.INFO)
    caplog.clear()
    await cloud.clock.advance(2000)
    assert "machines_of" in cloud.office.calls
    assert caplog.records == []


async def test_a_failure_is_a_warning_with_its_reason_and_shown_once(
    cloud: Cloud, worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    full = Failed("NoMachines", "All are rented.", code=contract.Code.RESOURCE_EXHAUSTED)
    await cloud.requests.create(count=0)
    await cloud.clock.run_until(lambda: ready(cloud))
    caplog.clear()
    for _ in range(2):
        cloud.office.faults = [full]
        worker.enqueue(ID)
        await cloud.clock.advance(1)
    (line,) = lines(caplog)
    assert (line.levelname, line.__dict__["result"]) == ("WARNING", "failed")
    assert "NoMachines: All are rented." in line.getMessage()


async def test_an_unexpected_error_is_a_warning_with_its_trace_once(
    cloud: Cloud, worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    await cloud.requests.create(count=0)
    await cloud.clock.run_until(lambda: ready(cloud))
    caplog.clear()
    cloud.office.faults = [OSError("the cable is out")] * 2
    worker.enqueue(ID)
    await cloud.clock.run_until(lambda: not cloud.office.faults)
    await cloud.clock.advance(1)
    first, second, after = lines(caplog)
    assert (first.levelname, first.__dict__["result"], bool(first.exc_info)) == ("WARNING", "error", True)
    assert (second.__dict__["attempt"], bool(second.exc_info)) == (2, False)
    assert (after.levelname, after.__dict__["result"]) == ("INFO", "done")


async def test_lines_that_an_engine_writes_in_a_run_carry_its_fields(
    cloud: Cloud, worker: Worker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine_logger, machines_of = logging.getLogger("neocloud.engines.toy"), cloud.office.machines_of

    async def machines_of_with_a_line(*arguments: Any) -> Any:
        engine_logger.info("looked")
        return await machines_of(*arguments)

    monkeypatch.setattr(cloud.office, "machines_of", machines_of_with_a_line)
    caplog.set_level(logging.INFO, "neocloud.engines")
    await cloud.requests.create(count=1)
    await cloud.clock.run_until(lambda: ready(cloud))
    found = [each for each in lines(caplog) if each.name == "neocloud.engines.toy"]
    assert found and {each.__dict__["kind"] for each in found} == {"neocloud.slurm.v1.Cluster"}
    engine_logger.info("outside of a run")
    assert "resource" not in caplog.records[-1].__dict__
