"""The guides of containers and of MPI in Slurm, each block of commands as written."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster import SHARED, Cluster
from tests.e2e.registry import serving
from tests.fast.container_images import busybox_layer, python_layer, write_layout
from tests.fast.guides.blocks import ROOT, Block, blocks_of

CONTAINERS = ROOT / "docs/guides/containers.md"
MPI = ROOT / "docs/guides/mpi.md"
FOLDER = f"{SHARED}/reader"
DRIVER = "/run/neocloud/driver"
NVIDIA_SMI = f"""
mkdir -p /jail{DRIVER}/bin /jail{DRIVER}/lib
echo 'echo simulated driver' > /jail{DRIVER}/bin/nvidia-smi
chmod +x /jail{DRIVER}/bin/nvidia-smi
"""


@pytest.fixture(scope="module", autouse=True)
def reader(bank: Cluster, images: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Prepare the reader's folder with programs, data, and the images of the pages in a registry.

    The images are made here, with a real Python, and the driver is simulated: no GPU is here.
    """
    folder = tmp_path_factory.mktemp("guides") / "images"
    layers = [busybox_layer(), python_layer(images / "jail" / "rootfs")]
    for name in ("nvidia/cuda", "library/ubuntu"):
        write_layout(folder / name, layers, {"Env": ["PATH=/bin"]})
    bank.wait_until_idle()
    bank.ssh(f"mkdir -p {FOLDER}/modules /mnt/data; echo records > /mnt/data/set")
    bank.ssh(f"cat > {FOLDER}/sum.c", stdin=Path(__file__).with_name("all_reduce.c").read_text())
    bank.ssh(f"cat > {FOLDER}/modules/check.py", stdin="import sys; print('module of', sys.platform)\n")
    bank.ssh(f"cat > {FOLDER}/train.sh", stdin="#!/bin/sh\ncat /opt/own /data/set\n")
    for worker in ("worker-0", "worker-1"):
        bank.in_pod(worker, "sh", "-c", NVIDIA_SMI)
    with serving(bank, folder):
        yield
    for worker in ("worker-0", "worker-1"):
        bank.in_pod(worker, "rm", "-r", f"/jail{DRIVER}")
    bank.ssh(f"rm -rf {FOLDER} /mnt/data /opt/modulefiles")


def output_of(bank: Cluster, block: Block) -> str:
    """Run a block in a login shell, or a script as a job; return what is printed, by its job, too."""
    shell = "sbatch" if block.text.startswith("#!") else "bash -le"
    command = f"cd {FOLDER} && cat > block && {shell} block 2>&1 </dev/null"
    done = bank.try_ssh(command, stdin=block.text, seconds=300)
    assert done.returncode == 0, f"{block.place}:\n{done.stdout}{done.stderr}"
    output, submitted, job = done.stdout.partition("Submitted batch job ")
    if not submitted:
        return output
    state = bank.wait_for_job(int(job))
    said = bank.ssh(f"cat {FOLDER}/slurm-{int(job)}.out")
    assert state == "COMPLETED", f"{block.place}: job {job} ended {state}\n{said}"
    return output + said


def test_the_page_of_containers_works_as_written(bank: Cluster) -> None:
    """FT-12, ERR-17: the nested example is the first command. The driver is simulated."""
    example, own_file, *others = blocks_of(CONTAINERS)
    assert not others
    assert "nvidia/cuda:12.4.1-base-ubuntu22.04" in example.text
    said = output_of(bank, example).splitlines()
    assert said[-2:] == ["module of linux", "simulated driver"], said
    assert output_of(bank, own_file).splitlines()[-2:] == ["changed", "records"]


def test_the_page_of_mpi_works_as_written(bank: Cluster) -> None:
    """SJOB-04: compiled and run from the login node, in a batch script, and modules."""
    program, script, modules, submounts = blocks_of(MPI)
    assert output_of(bank, program).count("sum 3, 0 wrong") == 2
    assert output_of(bank, script).count("sum 10, 0 wrong") == 4
    assert output_of(bank, modules) == ""
    assert "--submount /scratch" in submounts.text, "what it does: test_confinement.py"
