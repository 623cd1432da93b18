"""SLURM-09: jobs in containers, with the options of Pyxis, on a real cluster. Images are made here."""

import shlex
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from neocloud.testing.waiting import wait_until
from tests.e2e.cluster import SHARED, Cluster
from tests.e2e.container_images import (
    REGISTRY,
    add,
    busybox_layer,
    layer,
    write_docker_archive,
    write_layout,
)

IMAGES = f"{SHARED}/images"
SETTINGS = {"Env": ["PATH=/bin", "GREETING=from the image"], "WorkingDir": "/work"}
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
    folder = tmp_path_factory.mktemp("containers") / "images"
    tiny = busybox_layer()
    write_layout(folder / "tiny", [tiny], SETTINGS)
    write_layout(folder / "arm", [tiny], SETTINGS, architecture="arm64")
    write_layout(folder / "huge", [tiny], SETTINGS, claimed_size=HUGE)
    write_layout(folder / "hostile", [tiny, layer(hostile)], SETTINGS)
    write_layout(folder / "hard", [tiny, layer(link_to_a_file_outside)], SETTINGS)
    links = layer(lambda archive: add(archive, "mnt", kind=tarfile.SYMTYPE, target="/../../etc"))
    write_layout(folder / "links", [tiny, links], SETTINGS)
    write_docker_archive(folder / "tiny.tar", tiny)
    write_layout(folder / "nvidia" / "cuda", [tiny], {"Env": ["PATH=/bin"]})
    (folder / "broken.tar").write_bytes(b"nothing of the kind")
    bank.copy_in(folder, SHARED)
    bank.ssh(f"cat > {IMAGES}/registry.py", stdin=REGISTRY)
    bank.ssh(
        f"nohup python3 {IMAGES}/registry.py {IMAGES} >/dev/null 2>&1 </dev/null & echo $! >{IMAGES}/process"
    )
    wait_until(lambda: bank.try_ssh(f"cat {IMAGES}/port").stdout, "the registry listens")
    address = f"login-0:{bank.ssh(f'cat {IMAGES}/port')}"
    bank.ssh(
        "mkdir -p ~/.config/containers; cat > ~/.config/containers/registries.conf",
        stdin=f'[[registry]]\nlocation = "{address}"\ninsecure = true\n',
    )
    try:
        yield address
    finally:
        bank.ssh(
            f"kill $(cat {IMAGES}/process); rm -rf {IMAGES} ~/.config/containers ~/.cache/neocloud;"
            "userdel -r ann; sacctmgr -i remove user ann; true"
        )


def run(bank: Cluster, options: str, command: str = "true", *, code: int = 0, where: str = SHARED) -> str:
    """Run a step; return what it and srun print."""
    done = bank.try_ssh(f"cd {where} && srun --quiet {options} {command} 2>&1", seconds=240)
    assert (done.returncode != 0) == (code != 0), done.stdout + done.stderr
    return done.stdout.strip()


def test_an_image_of_the_shared_root_or_a_registry_is_where_a_step_runs(bank: Cluster, registry: str) -> None:
    look = "sh -c 'cat /etc/made-by; pwd; echo $GREETING'"
    names = (f"{IMAGES}/tiny", f"docker://{registry}/tiny:1", f"{registry}#tiny:latest")
    for name in names:
        said = run(bank, f"--container-image={name}", look).splitlines()[-3:]
        assert said == ["test", "/work", "from the image"], name
    # Where an image names no folder, the job's own is where tasks start.
    said = run(bank, "--container-image=./images/tiny.tar", "sh -c 'cat /etc/made-by; pwd'")
    assert said.splitlines()[-2:] == ["test", SHARED]
    assert bank.try_ssh("ls /etc/made-by").returncode  # nothing of it is in the shared root


def test_two_tasks_and_two_steps_import_an_image_once(bank: Cluster, registry: str) -> None:
    bank.ssh(f"rm -rf ~/.cache/neocloud {IMAGES}/asked")
    step = f"srun --quiet --ntasks=2 --overlap --mem=100 --container-image={registry}#tiny hostname"
    said = bank.run_job(f"{step} & {step} & wait", "--nodes=2", "--ntasks-per-node=1")
    assert (
        sorted(line for line in said.splitlines() if line.startswith("worker-"))
        == ["worker-0"] * 2 + ["worker-1"] * 2
    )
    asked = bank.ssh(f"cat {IMAGES}/asked").splitlines()
    layers = [path for path in asked if "/blobs/" in path]
    assert len(layers) == len(set(layers)) + 1, asked  # the configuration is looked at before, too


def test_mounts_home_and_the_working_directory(bank: Cluster, registry: str) -> None:
    bank.ssh("mkdir -p /mnt/set && echo data > /mnt/set/file && echo mine > ~/mine")
    image = f"--container-image={IMAGES}/tiny"
    said = run(
        bank,
        f"{image} --container-mounts=/mnt/set:/data,/mnt/set:/kept/here:ro --container-workdir=/data",
        "sh -c 'pwd; cat file /kept/here/file ~/mine; touch new; touch /kept/here/new || echo read-only'",
    )
    assert said.splitlines()[-6:-2] == ["/data", "data", "data", "mine"] and said.endswith("read-only")
    assert bank.ssh("ls /mnt/set").split() == ["file", "new"]
    said = run(bank, f"{image} --no-container-mount-home", "ls /root/mine", code=1)
    assert "No such file" in said
    said = run(bank, f"{image} --container-readonly", "touch /etc/new", code=1)
    assert "Read-only" in said
    said = run(bank, f"{image} --container-env=GREETING --export=ALL,GREETING=mine", "sh -c 'echo $GREETING'")
    assert said.endswith("mine")
    # A link of the image does not lead a mount out of it.
    run(bank, f"--container-image={IMAGES}/links --container-mounts=/mnt/set:/mnt/new", "cat /etc/new/file")
    assert bank.try_ssh("ls /etc/new").returncode
    bank.ssh("rm -r /mnt/set ~/mine")


def test_a_named_container_lasts_as_long_as_its_job(bank: Cluster, registry: str) -> None:
    image = f"--container-image={IMAGES}/tiny"
    said = bank.run_job(
        f"srun --quiet {image} --container-name=mine touch /kept\n"
        "srun --quiet --container-name=mine ls /kept\n"
        f"srun --quiet {image} --container-name=mine:create true && echo wrong\n"
        f"srun --quiet {image} ls /kept && echo wrong\n"
        "srun --quiet --overlap --mem=100 --container-name=mine sh -c 'touch /ready; sleep 60' &\n"
        "until srun --quiet --overlap --mem=100 --container-name=mine ls /ready; do :; done\n"
        "kill %1\nls /tmp",
        "--nodelist=worker-0",
    )
    assert "/kept" in said.split() and "/ready" in said.split() and "wrong" not in said
    assert "neocloud-containers-0" in said
    assert "there is no container mine" in run(bank, "--nodelist=worker-0 --container-name=mine", code=1)
    bank.wait_until_idle()
    count = ("sh", "-c", "pgrep --count --exact container-roots")
    wait_until(lambda: bank.in_pod("worker-0", *count).strip() == "1", "nothing keeps a container")


def test_a_container_is_saved_and_started_again(bank: Cluster, registry: str) -> None:
    saved = f"{IMAGES}/saved.sqsh"
    run(
        bank,
        f"--container-image={IMAGES}/tiny --container-save={saved}",
        "sh -c 'echo changed > /etc/made-by'",
    )
    said = run(bank, f"--container-image={saved}", "sh -c 'cat /etc/made-by; pwd; echo $GREETING'")
    assert said.splitlines()[-3:] == ["changed", "/work", "from the image"]


def test_a_batch_script_and_an_allocation_run_in_a_container(bank: Cluster, registry: str) -> None:
    option = f"--container-image={IMAGES}/tiny"
    bank.ssh(f"cat > {SHARED}/inside.sh", stdin="#!/bin/sh\ncat /etc/made-by\n")
    job = bank.ssh(f"cd {SHARED} && sbatch --parsable {option} inside.sh")
    assert bank.wait_for_job(job) == "COMPLETED" and bank.output_of(job).endswith("test")
    assert (
        "test" in bank.ssh(f"salloc --quiet --ntasks=1 {option} srun --quiet cat /etc/made-by").splitlines()
    )


def test_the_nested_example_of_a_gpu_cluster_runs_as_written(bank: Cluster, registry: str) -> None:
    """FT-12, ERR-17. The image's programs, the driver and nvidia-smi are simulated: no GPU is here."""
    driver = "/run/neocloud/driver"
    bank.ssh(
        f"mkdir -p {SHARED}/modules; echo 'echo module of $(cat /etc/made-by)' > {SHARED}/modules/check.sh"
    )
    program = f"/jail{driver}/bin/nvidia-smi"
    fake = (
        f"mkdir -p /jail{driver}/bin /jail{driver}/lib; echo 'echo simulated' > {program}; chmod +x {program}"
    )
    bank.in_pod("worker-0", "sh", "-c", fake)
    try:
        example = f"--container-image={registry}#nvidia/cuda:12.4.1-base-ubuntu22.04"
        said = run(bank, f"--nodelist=worker-0 {example}", 'bash -c "sh ./modules/check.sh && nvidia-smi"')
        assert said.splitlines()[-2:] == ["module of test", "simulated"]
    finally:
        bank.in_pod("worker-0", "rm", "-r", "/jail" + driver)


def test_what_cannot_be_run_says_why_in_one_line_and_fails_the_job(bank: Cluster, registry: str) -> None:
    expected = {
        f"{registry}#missing:1": f"there is no image {registry}#missing:1",
        f"{registry}#arm": "is for another architecture",
        f"{registry}#huge": "are free for images",
        f"{IMAGES}/nowhere": "No such file or directory",
        f"{IMAGES}/broken.tar": "neither a squashfs file nor an archive",
        "--help": "is not the name of an image",
        "user@registry#image": "skopeo login",
    }
    for name, text in expected.items():
        lines = run(bank, f"--container-image={name}", code=1).splitlines()
        errors = [line for line in lines if line.startswith("slurmstepd")]
        assert len(errors) == 1 and text in errors[0], lines
    said = run(bank, f"--export=ALL,NEOCLOUD_CONTAINER_TIMEOUT=3 --container-image={registry}#hangs", code=1)
    assert "did not answer within 3 s" in said
    said = run(bank, f"--container-image={IMAGES}/tiny --container-mounts=/nowhere:/data", code=1)
    assert "there is no /nowhere" in said
    job = bank.sbatch("true", f"--container-image={registry}#missing:1")
    assert bank.wait_for_job(job) == "FAILED"
    assert "there is no image" in bank.output_of(job)
    bank.wait_until_idle()


def test_a_hostile_image_reaches_nothing_outside_of_it(bank: Cluster, registry: str) -> None:
    """Of root and of a user: paths that lead out, links, devices, set-uid programs."""
    bank.ssh("useradd --create-home --shell /bin/bash ann; sacctmgr -i add user ann account=root")
    bank.ssh(f"chmod -R a+rX {IMAGES}")
    before = bank.ssh("sha256sum /etc/shadow; stat -c %h /etc/shadow")
    look = quoted(
        "/bin/setuid id; cat /etc/memory; cat /proc/[0-9]*/root/etc/slurm/slurm.key | wc -c;"
        " mount -t tmpfs x /tmp && echo mounted; sed -n 's/CapEff:.//p' /proc/self/status; echo tried"
    )
    step = f"srun --quiet --container-image={IMAGES}/hostile sh -c {look} 2>&1"
    for said in (bank.ssh(f"cd / && {step}"), bank.ssh(f"cd / && su ann -c {quoted(step)}")):
        assert "tried" in said and "euid" not in said and "mounted" not in said, said
        assert "0" in said.splitlines(), said  # bytes of the cluster's key
    assert "0000000000000000" in said.splitlines()  # a user gains nothing
    assert "cannot be imported" in run(bank, f"--container-image={IMAGES}/hard", code=1)
    assert not bank.try_ssh("ls -d /escaped /home/escaped /root/escaped /home/shared/escaped").stdout
    assert bank.ssh("sha256sum /etc/shadow; stat -c %h /etc/shadow") == before
    remap = f"srun --quiet --container-image={IMAGES}/tiny --container-remap-root id 2>&1"
    assert "only root can be root" in bank.try_ssh(f"cd / && su ann -c {quoted(remap)}").stdout


def quoted(text: str) -> str:
    return shlex.quote(text)
