"""`neo tuning job`: what is shown of a job's progress."""

import json
from typing import Any

import pytest

from neocloud.cli.commands.tuning.job import follow
from neocloud.cli.resources.lookup import ProjectClient
from neocloud.client.connection import connect
from neocloud.client.profiles import config_file, read_profiles
from neocloud.core import contract
from tests.cli.conftest import Neo
from tests.cli.fake_control_plane import PROJECT, FakeServer

JOBS = "neocloud.tuning.v1.FineTuningJobService"
JOB_ID = "finetuningjob-e00one"


def job(state: str = "RUNNING", step: int = 0) -> Any:
    return contract.from_dict(
        contract.message("neocloud.tuning.v1.FineTuningJob"),
        {
            "metadata": {"id": JOB_ID, "parent_id": PROJECT},
            "status": {"state": state, "step": step, "total_steps": 90},
        },
    )


def metrics(step: int, loss: float) -> dict[str, Any]:
    data = {"step": step, "total_steps": 90, "train_loss": loss, "tokens_per_second": 1200.0}
    return {"id": f"ftevent-m{step}", "type": "metrics", "data": json.dumps(data), "message": f"Step {step}"}


def test_each_loss_is_shown_with_its_own_step(
    signed_in: Neo, cloud: FakeServer, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """The job is read before its events are, so its own step is another."""
    cloud.serve(f"{JOBS}/Get", job("SUCCEEDED", step=87))
    events = contract.method(f"{JOBS}/ListEvents").output
    parsed = contract.from_dict(events, {"items": [metrics(1, 5.423), metrics(2, 4.1)]})
    cloud.serve(f"{JOBS}/ListEvents", parsed)
    profile = read_profiles(config_file()).get("test")
    with connect(profile) as client:
        follow(ProjectClient(client, profile, PROJECT), JOB_ID)
    shown = capfdbinary.readouterr().err.decode()
    assert "step 1/90, loss 5.423" in shown and "step 2/90, loss 4.100" in shown
    assert "step 87" not in shown
