"""SLURM-09: images that cannot be run and images that attack, on a real cluster. Images are made here."""

import shlex
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.container_images import add, busybox_layer, layer, sparse_layer, write_layout
from tests.e2e.registry import IMAGES, run, serving

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
        "--help": "is not the name of an image",
        "user@registry#image": "there is no password of user",
        "tiny.sqsh": "write ./tiny.sqsh if it is a file",
    }
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


def test_a_step_that_waits_for_a_registry_ends_when_it_is_interrupted(bank: Cluster, registry: str) -> None:
    """As Ctrl-C does. Its own job ends; a step of a job ends when its time is over, and the job goes on."""
    stalls = f"srun --container-image={registry}#stalls true"
    bank.ssh(f"{stalls} & {INTERRUPT}; true")
    bank.wait_until_idle(seconds=30)
    step = f"NEOCLOUD_CONTAINER_TIMEOUT=15 {stalls} & {INTERRUPT}"
    assert bank.run_job(f"{step}\nsrun --quiet echo goes on").endswith("goes on")


def test_a_hostile_image_reaches_nothing_outside_of_it(bank: Cluster, registry: str, local_user: str) -> None:
    """Of root and of a user: paths that lead out, links, devices, set-uid programs."""
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
