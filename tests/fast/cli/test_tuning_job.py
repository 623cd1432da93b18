"""`neo tuning job`: what is shown of a job's progress."""

import json
from pathlib import Path
from typing import Any

import pytest

from neocloud.cli.commands.tuning.job import follow
from neocloud.cli.resources.lookup import ProjectClient
from neocloud.client.connection import connect
from neocloud.client.profiles import config_file, read_profiles
from neocloud.core import contract
from tests.fast.cli.conftest import Neo
from tests.fast.cli.fake_control_plane import PROJECT, FakeServer, operation

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


@pytest.fixture
def jobs(cloud: FakeServer) -> FakeServer:
    """Three jobs. The name of the second has the form of an id; the model of the third has it too."""
    items = [
        {
            "metadata": {"id": f"finetuningjob-e00{number}", "parent_id": PROJECT, "name": name},
            "status": status,
        }
        for number, name, status in (
            ("one", "", {"fine_tuned_model": "tiny-support"}),
            ("two", "risk-models", {}),
            ("three", "", {"fine_tuned_model": "risk-models"}),
        )
    ]
    listed = contract.from_dict(contract.method(f"{JOBS}/List").output, {"items": items})

    def found(name: str, field: str) -> Any:
        for item in listed.items:
            if getattr(item.metadata, field) == name:
                return item
        raise contract.not_found("fine-tuning job", name)

    cloud.serve(f"{JOBS}/List", listed)
    cloud.serve(f"{JOBS}/Get", lambda request: found(request.id, "id"))
    cloud.serve(f"{JOBS}/GetByName", lambda request: found(request.name, "name"))
    for verb in ("Pause", "Resume", "Cancel", "Delete"):
        cloud.serve(f"{JOBS}/{verb}", operation("finetuningjob-e00one"))
    return cloud


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ("tiny-support", "finetuningjob-e00one"),
        ("risk-models", "finetuningjob-e00two"),
        ("finetuningjob-e00one", "finetuningjob-e00one"),
        ("", "finetuningjob-e00three"),
    ],
)
def test_a_job_is_found_by_name_id_or_model(
    signed_in: Neo, jobs: FakeServer, named: str, expected: str
) -> None:
    shown = signed_in("tuning", "job", "get", *filter(None, [named]), "-o", "json")
    assert shown.code == 0, shown.err
    assert json.loads(shown.out)["metadata"]["id"] == expected


@pytest.mark.parametrize("verb", ["pause", "resume", "cancel"])
def test_a_job_is_changed_by_name_or_model(signed_in: Neo, jobs: FakeServer, verb: str) -> None:
    for named, expected in (("tiny-support", "one"), ("risk-models", "two"), ("finetuningjob-e00one", "one")):
        ran = signed_in("tuning", "job", verb, named)
        assert ran.code == 0, ran.err
        assert jobs.asked(f"{JOBS}/{verb.capitalize()}")[-1].id == f"finetuningjob-e00{expected}"
    lost = signed_in("tuning", "job", verb, "lost-job")
    assert lost.code == 3 and "There is no job 'lost-job'" in lost.err


def test_a_job_is_not_deleted_by_the_name_of_its_model(signed_in: Neo, jobs: FakeServer) -> None:
    """The model itself may be meant."""
    ran = signed_in("tuning", "job", "delete", "tiny-support", "--yes")
    assert ran.code == 3 and not jobs.asked(f"{JOBS}/Delete")
    assert signed_in("tuning", "job", "delete", "risk-models", "--yes").code == 0


def test_a_price_is_checked_before_anything_starts(signed_in: Neo, jobs: FakeServer, tmp_path: Path) -> None:
    data = tmp_path / "chats.jsonl"
    data.write_text("{}\n")
    given = ("tune", str(data), "--base", "tiny")
    before = len(jobs.requests)
    cheap = signed_in(*given, "--serve", "--price", "cheap")
    assert cheap.code == 2 and "write 0.10/0.40" in cheap.err
    alone = signed_in(*given, "--price", "0.10/0.40")
    assert alone.code == 2 and "--serve" in alone.err
    assert len(jobs.requests) == before


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


def test_events_are_read_to_the_end_and_shown_with_their_date(signed_in: Neo, jobs: FakeServer) -> None:
    """A long training has more events than a page."""
    output = contract.method(f"{JOBS}/ListEvents").output

    def page(request: Any) -> Any:
        number = int(request.page_token.rpartition("-m")[2] or 0) + 1
        event = {**metrics(number, 1.0), "created_at": f"2026-11-0{number}T08:00:00Z", "level": "info"}
        is_last = number == 3
        return contract.from_dict(output, {"items": [event], "next_page_token": "" if is_last else "more"})

    jobs.serve(f"{JOBS}/ListEvents", page)
    ran = signed_in("tuning", "job", "events", JOB_ID)
    assert ran.code == 0, ran.err
    assert ran.out.splitlines() == [
        f"2026-11-0{number} 08:00:00 UTC  info   Step {number}" for number in (1, 2, 3)
    ]
