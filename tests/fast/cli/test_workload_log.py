"""`neo logs NAME`: the log of what runs in a resource, whichever service has it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from neocloud.cli.machine.home import Home
from neocloud.cli.resources.lookup import AI_JOBS, DEPLOYMENTS, ENDPOINTS, INSTANCES, TUNING_JOBS
from neocloud.client.profiles import config_file, read_profiles, write_profiles
from neocloud.core import contract
from tests.fast.cli.conftest import Neo
from tests.fast.cli.fake_control_plane import (
    FIND,
    TENANT,
    FakeServer,
    cluster,
    found_resource,
    serve_clusters,
    serve_search,
)

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
    for options in ((), ("--workload",), ("-w",)):
        ran = signed_in("logs", name, *options)
        assert ran.code == 0, ran.err
        assert ran.out == text


@pytest.fixture
def at_home(signed_in: Neo, cloud: FakeServer, server_log: None, user_folders: Path) -> Path:
    """The profile is of the cloud in the state folder, which has the log of its server."""
    profiles, home = read_profiles(config_file()), user_folders / "state"
    write_profiles(profiles.with_profile(replace(profiles.get("test"), home=str(home))), config_file())
    (home / "server.json").write_text(json.dumps({"grpc": cloud.endpoint}))
    return home


def test_a_name_prints_the_log_of_the_workload_also_on_the_machine_of_the_server(
    signed_in: Neo, served: FakeServer, at_home: Path
) -> None:
    ran = signed_in("logs", "web")
    assert (ran.code, ran.out, ran.err) == (0, "booted\n", "")
    assert signed_in("logs").out.endswith("web is known\n")


@pytest.mark.parametrize(
    "options", [("--control-plane",), ("-c",), ("--since", "100000d"), ("--level", "info"), ("--home",)]
)
def test_the_options_of_the_log_of_the_server_print_that(
    signed_in: Neo, served: FakeServer, at_home: Path, options: tuple[str, ...]
) -> None:
    ran = signed_in("logs", "web", *options, *([str(at_home)] if options == ("--home",) else []))
    assert ran.code == 0 and ran.out.endswith("web is known\n")
    assert not served.requests


def test_the_id_of_a_request_selects_lines_of_the_server(
    signed_in: Neo, served: FakeServer, at_home: Path
) -> None:
    identifier = "2d54" * 8
    line = f"2026-11-20 08:00:01,000 INFO neocloud.core.reconcile.run: [{identifier}] disk data is made\n"
    Home(at_home).log_file.write_text(f"2026-11-20 08:00:00,100 INFO neocloud.server: web is known\n{line}")
    ran = signed_in("logs", identifier)
    assert (ran.code, ran.out) == (0, line)


def test_the_log_of_the_server_is_printed_as_json(signed_in: Neo, served: FakeServer, at_home: Path) -> None:
    (line,) = signed_in("logs", "web", "--output", "json").out.splitlines()
    assert json.loads(line)["message"] == "web is known"


def test_a_state_folder_in_the_environment_chooses_the_cloud_and_no_log(
    signed_in: Neo, served: FakeServer, at_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEOCLOUD_HOME", str(at_home))
    assert signed_in("logs", "web").out == "booted\n"
    assert signed_in("logs", "web", "-c").out.endswith("web is known\n")


def test_a_user_who_may_not_read_the_log_of_the_server_reads_that_of_the_workload(
    signed_in: Neo, served: FakeServer, closed_home: Path
) -> None:
    ran = signed_in("logs", "web")
    assert (ran.code, ran.out, ran.err) == (0, "booted\n", "")
    for arguments in ((), ("web", "--control-plane")):
        ran = signed_in("logs", *arguments)
        assert ran.code == 4 and "cannot be read by this user. Run the command as root" in ran.err


def test_the_log_of_another_cloud_on_this_machine_is_not_that_of_the_profile(
    signed_in: Neo, served: FakeServer, server_log: None, user_folders: Path
) -> None:
    home = str(user_folders / "state")
    ran = signed_in("logs", "web", "--control-plane")
    assert ran.code != 0 and not ran.out
    assert f"add --home {home}" in ran.err
    assert signed_in("logs", "web", "--home", home).out.endswith("web is known\n")


def test_a_machine_without_the_log_of_the_server_says_so(
    signed_in: Neo, served: FakeServer, tmp_path: Path
) -> None:
    elsewhere = ("--home", str(tmp_path / "elsewhere"))
    for options in (("-c",), ("--level", "error"), ("--since", "5m"), elsewhere):
        ran = signed_in("logs", "web", *options)
        assert ran.code == 3 and "There is no log in" in ran.err


def test_a_resource_that_runs_nothing_has_the_lines_of_the_server(
    signed_in: Neo, served: FakeServer, at_home: Path
) -> None:
    disk, tenants = "computedisk-e00data", "group-e00b"
    serve_search(
        served,
        found_resource("nebius.compute.v1.DiskSnapshot", disk, "data"),
        found_resource("nebius.iam.v1.Group", tenants, "ops", TENANT),
    )
    log = Home(at_home).log_file
    log.write_text(f"2026-11-20 08:00:00,100 INFO neocloud.server: [{disk}] data is made of ops\n")
    for name in ("data", disk, "ops"):
        ran = signed_in("logs", name)
        assert (ran.code, ran.out) == (0, log.read_text())
        assert "this is what the server logged about it" in ran.err
    assert "Nothing runs in the disk snapshot 'data'" in signed_in("logs", "data").err
    assert signed_in("logs", "data", "--workload").code == 3


def test_a_resource_that_runs_nothing_has_no_log_on_another_machine(
    signed_in: Neo, served: FakeServer, user_folders: Path
) -> None:
    serve_search(served, found_resource("nebius.compute.v1.Disk", "computedisk-e00data", "data"))
    log = Home(user_folders / "state").log_file
    for is_there in (False, True):
        if is_there:  # of another cloud than the profile's
            log.parent.mkdir(parents=True)
            log.write_text("2026-11-20 08:00:00,100 INFO neocloud.server: data of others\n")
        ran = signed_in("logs", "data")
        assert (ran.code, ran.out) == (3, "")
        assert "Nothing runs in the disk 'data', so it has no log of its own" in ran.err


def test_the_workload_is_found_with_one_call(signed_in: Neo, served: FakeServer) -> None:
    serve_search(served, found_resource("nebius.compute.v1.Instance", "some-e00web", "web"))
    assert signed_in("logs", "web").out == "booted\n"
    paths = [path for path, _, _ in served.requests if "Exchange" not in path]
    assert paths[:2] == [FIND, f"{INSTANCES}/GetByName"] and f"{DEPLOYMENTS}/GetByName" not in paths


def test_a_server_that_does_not_answer_leaves_its_log(signed_in: Neo, user_folders: Path) -> None:
    profiles = read_profiles(config_file())
    for changes in ({"endpoint": "127.0.0.1:1"}, {"home": str(user_folders / "stopped")}):
        write_profiles(profiles.with_profile(replace(profiles.get("test"), **changes)), config_file())
        ran = signed_in("logs", "web")
        assert ran.code == 5 and "`neo logs web --control-plane` reads the server's log" in ran.err


def test_a_name_of_several_resources_is_refused(signed_in: Neo, served: FakeServer) -> None:
    ran = signed_in("logs", "both", "--workload")
    assert ran.code != 0
    assert "neo compute instance serial-log both, or neo deployment logs both" in ran.err


def test_a_name_of_nothing_is_refused(signed_in: Neo, served: FakeServer) -> None:
    ran = signed_in("logs", "lost", "--workload")
    assert ran.code == 3
    assert "deployment, fine-tuning job, endpoint or job 'lost'" in ran.err


def test_options_of_the_log_of_the_server_are_refused(signed_in: Neo, served: FakeServer) -> None:
    for arguments in (
        ("-w",),
        ("web", "-w", "--since", "5m"),
        ("web", "-w", "-o", "json"),
        ("web", "-w", "-c"),
    ):
        assert signed_in("logs", *arguments).code == 2


def serve_parts(cloud: FakeServer, path: str, *texts: str, **last: Any) -> None:
    """Serve a log whose parts have these texts."""

    def read(request: Any) -> Any:
        at = int(request.after.rpartition("/")[2]) if request.after else 0
        fields = last if at == len(texts) - 1 else {}
        return contract.method(path).output(text=texts[at], next_position=f"replica-0/1/{at + 1}", **fields)

    cloud.serve(path, read)


def test_logs_are_followed(signed_in: Neo, served: FakeServer) -> None:
    assert signed_in("logs", "lab", "--follow").out == "job 7\n"
    serve_parts(served, f"{TUNING_JOBS}/ReadLog", "step 1\n", "", "step 2\n", is_complete=True)
    ran = signed_in("logs", "tiny-support", "--follow")
    assert (ran.code, ran.out) == (0, "step 1\nstep 2\n")


def test_the_log_of_a_deployment_is_followed_over_a_restart(signed_in: Neo, served: FakeServer) -> None:
    path = f"{DEPLOYMENTS}/ReadLog"
    pages = iter(
        [("loaded", "r/1/1", "r/1"), ("served\n", "r/1/2", "r/1"), ("", "", ""), ("again\n", "r/2/1", "r/2")]
    )

    def read(request: Any) -> Any:
        text, position, run = next(pages)
        return contract.method(path).output(text=text, next_position=position, run=run)

    served.serve(path, read)
    ran = signed_in("logs", "bank", "--follow")
    assert ran.out == "loaded\nserved\nagain\n"
    assert ran.err.startswith("The replica was started again; this is the log of its new run.\n")
    assert [request.after for request in served.asked(path)] == ["", "r/1/1", "r/1/2", "r/1/2", "r/2/1"]


def test_a_server_that_cannot_continue_a_log_says_so(signed_in: Neo, served: FakeServer) -> None:
    for name, text in (("bank", "loaded\n"), ("tiny-support", "step 1\n")):
        ran = signed_in("logs", name, "--follow")
        assert ran.code != 0 and ran.out == text
        assert "cannot follow this log. Leave out --follow" in ran.err


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
