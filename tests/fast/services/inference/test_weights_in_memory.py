"""Weights in memory of a Slurm worker (FT-17): the copy, what makes room, and who is not believed."""

import os
import subprocess
from pathlib import Path

import pytest
from neocloud.messages.neocloud.slurm.v1 import ClusterSpec, Submount

from neocloud.services.inference.reconcile.scope import DeploymentScope
from neocloud.services.inference.reconcile.slurm_backend import SlurmBackend
from neocloud.services.inference.reconcile.slurm_job import from_memory
from neocloud.services.inference.rules.deployment import folder_in_memory
from tests.fast.services.inference.scripted_slurm import ScriptedJobs

GIB = 2**30
ENGINE = ("sh", "-c", 'echo "engine $1"; cat "$1/weights"', "engine")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "weights").write_text("one")
    return folder


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    folder = tmp_path / "memory"
    folder.mkdir(mode=0o1777)
    return folder


def run(model: Path, memory: Path, digest: str = "a1", engine: tuple[str, ...] = ENGINE) -> list[str]:
    command = from_memory(str(model), str(memory), digest, (*engine, str(model)))
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.splitlines()


def copy_of(memory: Path, digest: str = "a1") -> Path:
    return memory / ".neocloud-models" / digest


def test_the_first_engine_copies_the_weights_and_the_next_finds_them(model: Path, memory: Path) -> None:
    said = run(model, memory)
    assert "the weights are in memory" in said[0]
    assert said[1:] == [f"engine {copy_of(memory)}", "one"]
    (model / "weights").write_text("changed where it came from")
    assert run(model, memory)[1:] == [f"engine {copy_of(memory)}", "one"]
    assert (memory / ".neocloud-models").stat().st_mode & 0o777 == 0o700


def test_copies_that_no_engine_uses_make_room_for_others(model: Path, memory: Path) -> None:
    run(model, memory, "a1")
    run(model, memory, "b2")
    assert not copy_of(memory, "a1").exists() and copy_of(memory, "b2").is_dir()
    waits = ("sh", "-c", 'echo up; read -r _; cat "$1/weights"', "engine")
    command = from_memory(str(model), str(memory), "b2", (*waits, str(model)))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as engine:
        assert engine.stdout is not None and engine.stdin is not None
        while "up" not in engine.stdout.readline():
            pass
        run(model, memory, "c3")
        assert copy_of(memory, "b2").is_dir(), "an engine reads it"
        engine.stdin.write("\n")
        engine.stdin.flush()
        assert engine.stdout.read() == "one"


def test_half_a_copy_of_a_job_that_was_killed_is_not_taken_for_one(model: Path, memory: Path) -> None:
    run(model, memory, "b2")
    (memory / ".neocloud-models" / "new.a1").mkdir()
    (memory / ".neocloud-models" / "new.a1" / "weights").write_text("ha")
    assert run(model, memory, "a1")[1:] == [f"engine {copy_of(memory)}", "one"]
    assert not list((memory / ".neocloud-models").glob("new.*"))


def test_without_room_the_weights_are_read_where_they_are(model: Path, memory: Path) -> None:
    (model / "gone").symlink_to("nothing")  # the copy fails, as on a full disk
    said = run(model, memory)
    assert "cannot be copied" in said[0] and said[1:] == [f"engine {model}", "one"]
    assert not list((memory / ".neocloud-models").glob("*a1"))
    said = run(model, memory / "missing")
    assert "cannot be copied" in said[0] and said[1:] == [f"engine {model}", "one"]


@pytest.mark.parametrize("kind", ["a-link", "another-s-folder", "open-to-all"])
def test_a_folder_that_another_user_made_is_not_believed(
    model: Path, memory: Path, tmp_path: Path, kind: str
) -> None:
    evil = tmp_path / "evil"
    (evil / "a1").mkdir(parents=True)
    (evil / "a1" / "weights").write_text("evil")
    folder = memory / ".neocloud-models"
    if kind == "a-link":
        evil.chmod(0o700)
        folder.symlink_to(evil)
    else:
        evil.rename(folder)
        folder.chmod(0o700 if kind == "another-s-folder" else 0o777)
        if kind == "another-s-folder":
            os.chown(folder, 1234, 1234)
    said = run(model, memory)
    assert "cannot be copied" in said[0] and said[1:] == [f"engine {model}", "one"]


def test_a_name_of_a_model_is_only_ever_an_argument(memory: Path, tmp_path: Path) -> None:
    odd = tmp_path / "a b\"; $(touch pwned) '*"
    odd.mkdir()
    (odd / "weights").write_text("odd")
    assert run(odd, memory)[-1] == "odd"


def test_the_largest_submount_in_memory_that_has_room_is_taken() -> None:
    spec = ClusterSpec(
        submounts=[
            Submount(mount_path="/scratch", size_gibibytes=900),
            Submount(mount_path="/mnt/small", size_gibibytes=2, in_memory=True),
            Submount(mount_path="/mnt/memory", size_gibibytes=12, in_memory=True),
        ]
    )
    assert folder_in_memory(spec, 10 * GIB) == "/mnt/memory"
    assert folder_in_memory(spec, 11 * GIB) == "" == folder_in_memory(ClusterSpec(), 1)


async def test_the_job_of_a_replica_reads_them_from_there(
    backend: SlurmBackend, jobs: ScriptedJobs, scope: DeploymentScope
) -> None:
    await backend.start(scope, ["replica-0"])
    scope.deployment.spec.weights_in_memory = True
    scope.memory_folder = "/mnt/memory"
    assert scope.model is not None
    await backend.start(scope, ["replica-1"])
    plain, copied = jobs.submitted
    assert plain.script == copied.script, "replicas of other deployments keep running"
    assert plain.arguments[2] == "vllm" and copied.arguments[2:4] == ("bash", "-c")
    model = f"/opt/neocloud/models/{scope.id}/model"
    assert copied.arguments[6:8] == (model, "/mnt/memory")
    assert copied.arguments[9:12] == ("vllm", "serve", model)
