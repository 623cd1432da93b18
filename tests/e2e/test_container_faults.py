"""SLURM-09: images that cannot be run and images that attack, on a real cluster. Images are made here."""

import json
import shlex
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from neocloud.testing.waiting import wait_until
from tests.e2e.cluster import Cluster
from tests.e2e.registry import IMAGES, run, serving
from tests.fast.container_images import (
    DOCKER,
    add,
    busybox_layer,
    layer,
    sparse_layer,
    write_layout,
    zstd,
)

SETTINGS = {"Env": ["PATH=/bin"]}
HUGE = 1 << 50


def hostile(archive: tarfile.TarFile) -> None:
    """Entries that leave the image, and files with rights that an image must not have."""
    for name in ("../../../../../../escaped", "/escaped", "etc/../../../../../../escaped"):
        add(archive, name, b"out\n")
    add(archive, "away", kind=tarfile.SYMTYPE, target="/")
    add(archive, "away/escaped", b"out\n")
    add(archive, "up", kind=tarfile.SYMTYPE, target="../../../../../../../..")
    add(archive, "up/escaped", b"out\n")
    add(archive, "etc/memory", kind=tarfile.CHRTYPE, mode=0o666)
    add(archive, "bin/setuid", Path("/bin/busybox").read_bytes(), mode=0o6755)


def link_to_a_file_outside(archive: tarfile.TarFile) -> None:
    add(archive, "hard", kind=tarfile.LNKTYPE, target="../../../../../../etc/shadow")


@pytest.fixture(scope="module")
def registry(bank: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Put images into the shared root; provide the address of a registry that has them, too."""
    folder = tmp_path_factory.mktemp("faults") / "images"
    tiny = busybox_layer()
    write_layout(folder / "tiny", [tiny], SETTINGS)
    write_layout(folder / "arm", [tiny], SETTINGS, architecture="arm64")
    write_layout(folder / "huge", [tiny], SETTINGS, claimed_size=HUGE)
    write_layout(folder / "grows", [tiny, sparse_layer(HUGE)], SETTINGS)
    write_layout(folder / "stalls", [tiny], SETTINGS)
    write_layout(folder / "garbled", [tiny, b"no archive " * 999], SETTINGS)
    write_layout(folder / "changed", [tiny], SETTINGS)
    largest(folder / "changed").write_bytes(tiny[:-1] + b"x")
    write_layout(folder / "hostile", [tiny, layer(hostile)], SETTINGS)
    write_layout(folder / "hard", [tiny, layer(link_to_a_file_outside)], SETTINGS)
    (folder / "broken.tar").write_bytes(b"nothing of the kind")
    for size in (70, 300):
        variables = [f"V{number}={'x' * 1000}" for number in range(size)]
        write_layout(folder / f"variables-{size}", [tiny], {"Env": ["PATH=/bin", *variables]})
    write_layout(folder / "docker-zstd", [tiny], SETTINGS, packed={0: zstd}, types=DOCKER)
    with serving(bank, folder) as address:
        yield address


def largest(folder: Path) -> Path:
    return max((folder / "blobs" / "sha256").iterdir(), key=lambda file: file.stat().st_size)


def test_what_cannot_be_run_says_why_in_one_line_and_fails_the_job(bank: Cluster, registry: str) -> None:
    expected = {
        f"{registry}#missing:1": f"there is no image {registry}#missing:1",
        f"{registry}#arm": "is for another architecture",
        f"{registry}#huge": "are free for images",
        f"{IMAGES}/nowhere": "No such file or directory",
        f"{IMAGES}/broken.tar": "neither a squashfs file nor an archive",
        f"{registry}#changed": "cannot be imported",
        f"{registry}#garbled": "cannot be imported",
        f"{registry}#docker-zstd": "compressed with zstd under Docker's type",
        f"{IMAGES}/variables-70": "sets 68 KiB of variables; a container takes 32 KiB",
        f"{registry}#variables-300": "KiB of variables; a container takes 32 KiB",
        f"{IMAGES}/pipe": "is neither a file nor a folder",
        "--help": "is not the name of an image",
        "user@registry#image": "there is no password of user",
        "tiny.sqsh": "write ./tiny.sqsh if it is a file",
    }
    bank.ssh(f"mkfifo {IMAGES}/pipe")
    for name, text in expected.items():
        lines = run(bank, f"--container-image={name}", code=1).splitlines()
        errors = [line for line in lines if line.startswith("slurmstepd")]
        assert len(errors) == 1 and text in errors[0], lines
    for name, text in (
        ("hangs", "did not answer within 3 s"),
        ("stalls", "nothing arrived from its registry"),
    ):
        options = f"--export=ALL,NEOCLOUD_CONTAINER_TIMEOUT=3 --container-image={registry}#{name}"
        assert text in run(bank, options, code=1)
    said = run(bank, f"--container-image={IMAGES}/tiny --container-mounts=/nowhere:/data", code=1)
    assert "there is no /nowhere" in said
    job = bank.sbatch("true", f"--container-image={registry}#missing:1")
    assert bank.wait_for_job(job) == "FAILED"
    assert "there is no image" in bank.output_of(job)
    bank.wait_until_idle()


def test_an_image_that_grows_over_the_space_is_ended_and_leaves_nothing(bank: Cluster, registry: str) -> None:
    """Its manifest names some bytes, and its layer is a petabyte. Images lie in the job's own /tmp here."""
    said = bank.run_job(
        f"export XDG_CACHE_HOME=/tmp/cache; srun --quiet --container-image={registry}#grows true 2>&1;"
        " find /tmp/cache/neocloud/containers -mindepth 1 -not -name '*.lock' | wc -l"
    )
    assert "is larger than the space for images" in said and said.splitlines()[-1] == "0"


INTERRUPT = "step=$!; sleep 4; kill -INT $step; sleep 0.5; kill -INT $step; wait $step"


@pytest.mark.long
def test_a_step_that_waits_for_a_registry_ends_when_it_is_interrupted(bank: Cluster, registry: str) -> None:
    """The step is interrupted as by Ctrl-C. Its own job ends; a step of a job ends when its time is over, and
    the job continues.
    """
    stalls = f"srun --container-image={registry}#stalls true"
    bank.ssh(f"{stalls} & {INTERRUPT}; true")
    bank.wait_until_idle(seconds=30)
    step = f"NEOCLOUD_CONTAINER_TIMEOUT=15 {stalls} & {INTERRUPT}"
    assert bank.run_job(f"{step}\nsrun --quiet echo continues").endswith("continues")


def test_long_answers_and_programs_that_stop_hold_no_node(
    bank: Cluster, registry: str, local_user: str
) -> None:
    """They run as a user without rights. Jobs of others run on the node afterwards, and beside it."""
    bank.ssh(f"chmod -R a+rX {IMAGES}")
    deep = f"/tmp/{'d' * 200}"
    image = f"--nodelist=worker-0 --mem=200 --container-image={IMAGES}/tiny"

    def by_user(command: str) -> str:
        return bank.ssh(f"cd / && su {local_user} -c {shlex.quote(command)} 2>&1; true", seconds=200)

    long, many = (
        ",".join(f"/etc:{path}{number}" for number in range(count))
        for path, count in ((deep, 330), ("/m", 1200))
    )
    said = by_user(f"srun --quiet {image} --container-mounts={long} sh -c 'ls -d /tmp/d* | wc -l'")
    assert said.splitlines()[-1] == "330"  # 77 kB, more than a pipe holds
    assert "a container takes 1000 mounts and 256 KiB" in by_user(
        f"srun --quiet {image} --container-mounts={many} true"
    )
    # A container that somebody else saved, with variables that its file names.
    saved = json.dumps({"variables": {f"V{number}": "x" * 1000 for number in range(80)}, "directory": "/"})
    bank.ssh(f"mkdir {IMAGES}/evil && cat > {IMAGES}/evil/.container.json", stdin=saved)
    bank.ssh(f"cd {IMAGES} && mksquashfs evil evil.sqsh -quiet && chmod a+r evil.sqsh")
    assert "KiB of variables" in by_user(
        f"srun --quiet --nodelist=worker-0 --container-image={IMAGES}/evil.sqsh true"
    )
    bank.wait_until_idle(seconds=30)


STOP = """
import os, signal, sys, time
stopped = set()
while time.monotonic() < float(sys.argv[2]):
    for name in os.listdir("/proc"):
        try:
            said = open(f"/proc/{name}/cmdline").read() if name.isdigit() and name not in stopped else ""
            if sys.argv[1] in said and os.stat(f"/proc/{name}").st_uid in (os.getuid(), 0):
                os.kill(int(name), signal.SIGSTOP)
                stopped.add(name)
                print("stopped", flush=True)
        except OSError:
            pass
"""
"""Stops processes of this user as soon as they are there: a program's name and the end by the clock."""


@pytest.mark.parametrize("program", ["libexec/container", "container-roots"])
def test_what_a_user_stops_of_its_container_holds_up_nobody_else(
    bank: Cluster, registry: str, local_user: str, program: str
) -> None:
    bank.ssh(f"chmod -R a+rX {IMAGES}; cat > /home/{local_user}/stop.py", stdin=STOP)
    mounts = ",".join(
        f"/etc:/mnt/{number}" for number in range(900)
    )  # so that its keeper is there for a while
    options = f"--nodelist=worker-0 --mem=100 --overlap --container-image={IMAGES}/tiny"
    script = (
        f"#!/bin/bash\nuntil=$(($(cut -d. -f1 /proc/uptime) + 40))\n"
        f"python3 /home/{local_user}/stop.py {program} $until & sleep 1\n"
        f"srun {options} --container-mounts={mounts} true; sleep 60\n"
    )
    submit = "sbatch --parsable --nodelist=worker-0 --mem=300 --output=/dev/null --time=5"
    job = bank.ssh(f"cd / && su {local_user} -c '{submit}'", stdin=script)
    wait_until(lambda: "T" in bank.in_pod("worker-0", "sh", "-c", stopped_of(program)), "it has stopped one")
    said = run(bank, f"--nodelist=worker-0 --mem=100 --container-image={IMAGES}/tiny", "cat /etc/made-by")
    assert said.endswith("test")
    bank.ssh(f"scancel {job}")
    bank.wait_until_idle(seconds=60)


def stopped_of(program: str) -> str:
    return f"ps -eo stat,args | grep '^T.*{program}' | cut -c1"


def test_a_hostile_image_reaches_nothing_outside_of_it(bank: Cluster, registry: str, local_user: str) -> None:
    """The image runs as root and as a user: paths that lead out, links, devices, set-uid programs."""
    bank.ssh(f"chmod -R a+rX {IMAGES}")
    before = bank.ssh("sha256sum /etc/shadow; stat -c %h /etc/shadow")
    look = shlex.quote(
        "/bin/setuid id; cat /etc/memory; cat /proc/[0-9]*/root/etc/slurm/slurm.key | wc -c;"
        " mount -t tmpfs x /tmp && echo mounted; sed -n 's/CapEff:.//p' /proc/self/status; echo tried"
    )
    step = f"srun --quiet --container-image={IMAGES}/hostile sh -c {look} 2>&1"
    for said in (bank.ssh(f"cd / && {step}"), bank.ssh(f"cd / && su {local_user} -c {shlex.quote(step)}")):
        assert "tried" in said and "euid" not in said and "mounted" not in said, said
        assert "0" in said.splitlines(), said  # bytes of the cluster's key
    assert "0000000000000000" in said.splitlines()  # a user gains nothing
    assert "cannot be imported" in run(bank, f"--container-image={IMAGES}/hard", code=1)
    assert not bank.try_ssh("ls -d /escaped /home/escaped /root/escaped /home/shared/escaped").stdout
    assert bank.ssh("sha256sum /etc/shadow; stat -c %h /etc/shadow") == before
