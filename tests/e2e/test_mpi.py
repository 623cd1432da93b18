"""MPI programs on the shared cluster, and the tools that people expect on a node."""

from collections import Counter
from pathlib import Path

import pytest

from tests.e2e.cluster import SHARED, Cluster

PROGRAM = Path(__file__).with_name("all_reduce.c")


@pytest.fixture(autouse=True, scope="module")
def program(bank: Cluster) -> str:
    """A C program, compiled on the login node; jobs find it in the shared root."""
    bank.wait_until_idle()
    bank.ssh(
        f"cd {SHARED} && cat > all_reduce.c && mpicc -O2 -o all_reduce all_reduce.c",
        stdin=PROGRAM.read_text(),
    )
    return f"{SHARED}/all_reduce"


@pytest.mark.parametrize(
    ("launch", "options"),
    [
        ("srun --mpi=pmix", ("--nodes=2", "--ntasks-per-node=2")),
        ("srun", ("--nodes=1", "--ntasks=2")),
        ("mpirun", ("--nodes=2", "--ntasks=2")),
    ],
)
def test_ranks_on_all_nodes_find_the_same_sums(
    bank: Cluster, program: str, launch: str, options: tuple[str, ...]
) -> None:
    """SJOB-04: an all-reduce of one number and of 8 MiB, checked by each rank."""
    output = bank.run_job(f"{launch} {program}", *options).splitlines()
    found = sorted(line for line in output if line.startswith("rank"))
    ranks = len(found)
    nodes = Counter(line.split(" on ")[1].split(":")[0] for line in found)
    total = ranks * (ranks + 1) // 2
    assert [line.split(" on ")[0] for line in found] == [f"rank {rank} of {ranks}" for rank in range(ranks)]
    assert all(line.endswith(f": sum {total}, 0 wrong") for line in found)
    per_node = 2 if "--ntasks-per-node=2" in options or "--nodes=1" in options else 1
    assert set(nodes.values()) == {per_node} and len(nodes) == (1 if "--nodes=1" in options else 2)


def test_a_rank_that_fails_ends_the_others(bank: Cluster) -> None:
    """A rank leaves before MPI_Finalize; the others would wait for it for ever."""
    source = (
        "#include <mpi.h>\n#include <stdlib.h>\nint main(int c, char **v) { int rank; MPI_Init(&c, &v);"
        " MPI_Comm_rank(MPI_COMM_WORLD, &rank); if (rank) MPI_Abort(MPI_COMM_WORLD, 7);"
        " MPI_Barrier(MPI_COMM_WORLD); MPI_Finalize(); return 0; }"
    )
    bank.ssh(f"cd {SHARED} && mpicc -x c -o aborts -", stdin=source)
    job = bank.sbatch(f"srun {SHARED}/aborts", "--nodes=2", "--ntasks=2")
    assert bank.wait_for_job(job) == "FAILED"


def test_a_way_of_mpi_that_does_not_exist_is_refused_and_the_list_has_pmix(bank: Cluster) -> None:
    listed = bank.try_ssh("srun --mpi=list")
    assert "pmix" in (listed.stdout + listed.stderr).split()
    refused = bank.try_ssh("srun --mpi=other hostname")
    assert refused.returncode != 0 and "mpi" in refused.stderr.lower()


TOOLS = (
    "lspci",
    "numactl --show",
    "htop --version",
    "git lfs version",
    "jq --version",
    "make --version",
    "g++ --version",
)


def test_the_tools_of_a_node_are_there(bank: Cluster) -> None:
    output = bank.run_job("\n".join(f"{tool} > /dev/null && echo {tool}" for tool in TOOLS))
    assert output.splitlines() == list(TOOLS)


def test_modules_are_there_in_shells_and_jobs_and_of_people_themselves(bank: Cluster) -> None:
    """`module` in a login shell, in a command over ssh, and in batch jobs from ssh and from `neo`."""
    bank.ssh(
        "mkdir -p /opt/modulefiles/ours && cat > /opt/modulefiles/ours/1.0.lua", stdin='setenv("OURS", "1")\n'
    )
    use = "module -t avail 2>&1 | grep -E '^(openmpi|ours)/.'; module load ours openmpi; echo $OURS $MPI_HOME"
    expected = ["ours/1.0", "openmpi/4.1", "1 /usr/lib/x86_64-linux-gnu/openmpi"]
    try:
        assert bank.ssh(f'bash -l -c "{use.replace("$", chr(92) + "$")}"').splitlines() == expected
        assert bank.ssh(use).splitlines() == expected
        assert bank.run_job(use).splitlines() == expected
        said = bank.cloud.neo("slurm", "job", "submit", "bank", "-", "--wait", stdin=f"#!/bin/bash\n{use}\n")
        assert bank.output_of(said.stdout.split()[-1]).splitlines() == expected
    finally:
        bank.ssh("rm -r /opt/modulefiles")
