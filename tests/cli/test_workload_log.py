"""`neo logs NAME --workload`: the log of what runs in a resource, whichever service has it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from neocloud.cli.machine.home import Home
from neocloud.cli.resources.lookup import AI_JOBS, DEPLOYMENTS, ENDPOINTS, INSTANCES, TUNING_JOBS
from neocloud.client.profiles import config_file, read_profiles, write_profiles
from neocloud.core import contract
from tests.cli.conftest import Neo
from tests.cli.fake_control_plane import FakeServer, cluster, serve_clusters

SLURM_JOBS = "neocloud.slurm.v1.JobService"
AI_LOGS = "neocloud.ai.v1.LogService"
MACHINES = "neocloud.compute.v1.MachineService"


def serve_names(cloud: FakeServer, service: str, *names: str) -> None:
    def by_name(request: Any) -> Any:
        if request.name not in names:
            raise contract.not_found("resource", request.name)
        made = contract.method(f"{service}/GetByName").output()
        made.metadata.id, made.metadata.name = f"some-e00{request.name}", request.name
        return made

    cloud.serve(f"{service}/GetByName", by_name)


def serve_program(cloud: FakeServer, verb: str, *lines: str, **more: Any) -> None:
    """Serve the log of a program that has printed these lines."""
    path = f"{AI_LOGS}/{verb}"

    def read(request: Any) -> Any:
        first = max(0, len(lines) - request.tail) if request.tail else request.first_line
        fields = {"lines": lines[first:], "next_line": len(lines), "run": "1-1", **more}
        return contract.method(path).output(**fields)

    cloud.serve(path, read)


@pytest.fixture
def served(cloud: FakeServer) -> FakeServer:
    serve_names(cloud, INSTANCES, "web", "both")
    serve_names(cloud, DEPLOYMENTS, "bank", "both")
    serve_names(cloud, TUNING_JOBS)
    serve_names(cloud, ENDPOINTS, "n-ep")
    serve_names(cloud, AI_JOBS, "nightly")
    serve_program(cloud, "ReadEndpointLog", "listening")
    serve_program(cloud, "ReadJobLog", "epoch 1", is_complete=True)
    serve_clusters(cloud, cluster("lab"))
    job = {"metadata": {"id": "finetuningjob-e00one"}, "status": {"fine_tuned_model": "tiny-support"}}
    listed = contract.from_dict(contract.method(f"{TUNING_JOBS}/List").output, {"items": [job]})
    cloud.serve(f"{TUNING_JOBS}/List", listed)
    cloud.serve(f"{TUNING_JOBS}/ReadLog", contract.method(f"{TUNING_JOBS}/ReadLog").output(text="step 1\n"))
    cloud.serve(f"{DEPLOYMENTS}/ReadLog", contract.method(f"{DEPLOYMENTS}/ReadLog").output(text="loaded"))
    jobs = contract.method(f"{SLURM_JOBS}/List").output
    cloud.serve(f"{SLURM_JOBS}/List", contract.from_dict(jobs, {"items": [{"id": 6}, {"id": 7}]}))

    def read_job(request: Any) -> Any:
        text = f"job {request.job_id}\n".encode()
        return contract.method(f"{SLURM_JOBS}/ReadLog").output(data=text, is_complete=True)

    cloud.serve(f"{SLURM_JOBS}/ReadLog", read_job)

    def read_console(request: Any) -> Any:
        lines = [] if request.first_line else ["booted"]
        return contract.method(f"{MACHINES}/ReadSerialLog").output(lines=lines, next_line=1)

    cloud.serve(f"{MACHINES}/ReadSerialLog", read_console)
    return cloud


@pytest.fixture
def server_log(user_folders: Path) -> None:
    file = Home(user_folders / "state").log_file
    file.parent.mkdir(parents=True)
    file.write_text("2026-11-20 08:00:00,100 INFO neocloud.server: web is known\n")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("web", "booted\n"),
        ("bank", "loaded\n"),
        ("lab", "job 7\n"),
        ("tiny-support", "step 1\n"),
        ("n-ep", "listening\n"),
        ("nightly", "epoch 1\n"),
    ],
)
def test_the_log_of_a_workload_is_found_by_name(
    signed_in: Neo, served: FakeServer, server_log: None, name: str, text: str
) -> None:
    for option in ("--workload", "-w"):
        ran = signed_in("logs", name, option)
        assert ran.code == 0, ran.err
        assert ran.out == text


def test_without_the_option_it_is_the_log_of_the_server(
    signed_in: Neo, served: FakeServer, server_log: None, user_folders: Path
) -> None:
    profiles = read_profiles(config_file())
    here = replace(profiles.get("test"), home=str(user_folders / "state"))
    write_profiles(profiles.with_profile(here), config_file())
    ran = signed_in("logs", "web")
    assert ran.code == 0 and ran.out.endswith("web is known\n")
    assert not served.requests


def test_a_user_who_may_not_read_the_log_of_the_server_reads_that_of_the_workload(
    signed_in: Neo, served: FakeServer, closed_home: Path
) -> None:
    ran = signed_in("logs", "web")
    assert (ran.code, ran.out) == (0, "booted\n")
    assert "The server's log may be read by root only" in ran.err
    ran = signed_in("logs")
    assert ran.code == 4 and "cannot be read by this user. Run the command as root" in ran.err


def test_the_log_of_another_cloud_on_this_machine_is_not_that_of_the_profile(
    signed_in: Neo, served: FakeServer, server_log: None, user_folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = signed_in("logs", "web")
    home = str(user_folders / "state")
    assert (ran.code, ran.out) == (0, "booted\n")
    assert f"add --home {home}" in ran.err
    assert signed_in("logs", "web", "--home", home).out.endswith("web is known\n")
    monkeypatch.setenv("NEOCLOUD_HOME", home)
    assert signed_in("logs", "web").out.endswith("web is known\n")


def test_a_machine_without_the_log_of_the_server_prints_that_of_the_workload(
    signed_in: Neo, served: FakeServer, tmp_path: Path
) -> None:
    ran = signed_in("logs", "web")
    assert (ran.code, ran.out) == (0, "booted\n")
    assert "The server's log is not on this machine" in ran.err
    for options in (("--level", "error"), ("--since", "5m"), ("--home", str(tmp_path / "elsewhere"))):
        ran = signed_in("logs", "web", *options)
        assert ran.code == 3 and "There is no log in" in ran.err


def test_a_name_of_several_resources_is_refused(signed_in: Neo, served: FakeServer) -> None:
    ran = signed_in("logs", "both", "--workload")
    assert ran.code != 0
    assert "neo compute instance serial-log both, or neo deployment logs both" in ran.err


def test_a_name_of_nothing_is_refused(signed_in: Neo, served: FakeServer) -> None:
    ran = signed_in("logs", "lost", "--workload")
    assert ran.code == 3
    assert "deployment, fine-tuning job, endpoint or job 'lost'" in ran.err


def test_options_of_the_log_of_the_server_are_refused(signed_in: Neo, served: FakeServer) -> None:
    for arguments in (("--workload",), ("web", "-w", "--since", "5m"), ("web", "-w", "-o", "json")):
        assert signed_in("logs", *arguments).code == 2


def test_only_some_logs_can_be_followed(signed_in: Neo, served: FakeServer) -> None:
    assert signed_in("logs", "lab", "--workload", "--follow").out == "job 7\n"
    bank = signed_in("logs", "bank", "--workload", "--follow")
    assert bank.code == 2 and "cannot be followed" in bank.err
    tuned = signed_in("logs", "tiny-support", "--workload", "--follow")
    assert tuned.code == 2 and "neo tuning job events tiny-support --follow" in tuned.err


def test_the_empty_log_of_a_deployment_says_why(signed_in: Neo, cloud: FakeServer) -> None:
    """A replica that ended has no log any more, but its record says how."""
    name, log = f"{DEPLOYMENTS}/GetByName", f"{DEPLOYMENTS}/ReadLog"
    killed = "the model server ended (signal 9): it was killed"
    replica = {"name": "replica-0", "state": "PENDING", "message": killed}
    found = {
        "metadata": {"id": "inferencedeployment-e00a", "name": "bank"},
        "status": {"replicas": [replica]},
    }
    cloud.serve(name, contract.from_dict(contract.method(name).output, found))
    cloud.serve(log, contract.method(log).output())
    for options in ((), ("--replica", "replica-0")):
        ran = signed_in("deployment", "logs", "bank", *options)
        assert (ran.code, ran.out) == (0, "")
        assert ran.err == f"The log is empty: {killed}\n"
    found["status"] = {"message": "this machine cannot hold it"}
    cloud.serve(name, contract.from_dict(contract.method(name).output, found))
    assert "The log is empty: this machine cannot hold it" in signed_in("deployment", "logs", "bank").err
