"""Root of a tenant inside a Slurm cluster tries to leave the shared root: the cluster ends where it began.

One cluster serves all tests. What is tried from inside is in `escape.py`; here are the ways that lead through
the daemons and the control plane.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from neocloud.testing.waiting import wait_until
from tests.e2e.cloud import Cloud
from tests.e2e.cluster import SHARED, Cluster
from tests.e2e.conftest import images as images

ESCAPE = Path(__file__).with_name("escape.py").read_text()
NODES = ("worker-0", "worker-1", "login-0")
LIBRARY = "/usr/local/lib/neocloud"
ENTER_ROOT = f"{LIBRARY}/enter-root"


@pytest.fixture(scope="module")
def cluster(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cloud = Cloud.prepare(tmp_path_factory.mktemp("cloud"), images)
    try:
        cloud.up()
        cluster = Cluster.create(cloud, "cage", "--workers", "2", "--preset", "1vcpu-1gb")
        cluster.wait_until_idle()
        cluster.ssh(f"cat > {SHARED}/escape.py", stdin=ESCAPE)
        yield cluster
    finally:
        cloud.neo("destroy", "--yes")


def daemons_root(cluster: Cluster, pod: str) -> dict[str, str]:
    """Files of the container's own root that were made or changed since its image was made: their content."""
    container = cluster.container(pod)
    changed = [line.split(" ", 1)[1] for line in cluster.cloud.podman("diff", container).splitlines()]
    kept = [path for path in changed if not path.startswith(("/run", "/var/spool/slurmd", "/jail"))]
    said = cluster.in_pod(pod, "sh", "-c", 'for f; do [ ! -f "$f" ] || sha256sum "$f"; done', "-", *kept)
    return {path: content for content, path in (line.split() for line in said.splitlines())}


@pytest.fixture(autouse=True)
def ends_where_it_began(cluster: Cluster) -> Iterator[None]:
    cluster.wait_until_idle()
    before = {pod: daemons_root(cluster, pod) for pod in NODES}
    yield
    cluster.wait_until_idle(seconds=240)
    assert {pod: daemons_root(cluster, pod) for pod in NODES} == before


def test_root_in_a_job_stays_in_the_shared_root(cluster: Cluster) -> None:
    assert json.loads(cluster.run_job("python3 escape.py")) == []
    assert json.loads(cluster.run_job("srun python3 escape.py")) == []


def test_root_in_a_login_session_stays_in_the_shared_root(cluster: Cluster) -> None:
    assert json.loads(cluster.ssh(f"python3 {SHARED}/escape.py")) == []


def test_root_in_a_session_on_a_worker_stays_in_the_shared_root(cluster: Cluster) -> None:
    script = f"ssh -o BatchMode=yes $(hostname) python3 {SHARED}/escape.py"
    assert json.loads(cluster.run_job(script)) == []


def test_root_is_nobody_on_this_machine(cluster: Cluster) -> None:
    """Every pod of the cluster, and all that runs in it, has ids that nothing else on this machine has."""
    read = "cat /proc/self/uid_map"
    maps = {cluster.run_job(read), cluster.ssh(read)}
    maps |= {cluster.in_pod(pod, *read.split()) for pod in (*NODES, "controller-0", "accounting-0")}
    (found,) = {tuple(map(int, text.split())) for text in maps}
    inside, first, size = found
    assert (inside, size) == (0, 65536) and first >= 2**30
    process = int(cluster.cloud.podman("inspect", "--format={{.State.Pid}}", cluster.container("worker-0")))
    assert os.stat(f"/proc/{process}").st_uid == first
    details = cluster.cloud.neo_json("status")["engine"]["details"]
    assert details["user namespaces"] == "for Slurm clusters and AI workloads"


def test_what_the_control_plane_runs_stays_in_the_shared_root(cluster: Cluster) -> None:
    for pod in NODES:
        said = cluster.in_pod(pod, ENTER_ROOT, "python3", f"{SHARED}/escape.py")
        assert json.loads(said) == []


IMITATION = f"""#!/usr/bin/python3
import os, subprocess, sys
said = subprocess.run([sys.executable, "{SHARED}/escape.py"], capture_output=True, text=True)
with open("{SHARED}/imitated", "a") as file:
    file.write((said.stdout or said.stderr.splitlines()[-1]) + "\\n")
os.execv("REAL", sys.argv)
"""
"""Takes the place of a program of the shared root, tries to leave, and continues as that program."""


@pytest.mark.parametrize(
    ("program", "real"),
    [("/usr/bin/bash", "/usr/bin/bash.real"), ("/usr/local/bin/sbatch", "/opt/slurm/bin/sbatch")],
)
def test_a_program_that_the_control_plane_runs_is_replaced(cluster: Cluster, program: str, real: str) -> None:
    cluster.ssh(f"rm -f {SHARED}/imitated")
    cluster.ssh(f"cat > {program}.new && chmod 755 {program}.new", stdin=IMITATION.replace("REAL", real))
    try:
        swap = f"mv {program} {program}.real && mv {program}.new {program}"
        cluster.in_pod("login-0", ENTER_ROOT, "sh", "-c", swap)
        script = cluster.cloud.folder / "job.sh"
        script.write_text("#!/bin/sh\nhostname\n")
        cluster.cloud.neo("slurm", "job", "submit", cluster.name, str(script))
        cluster.cloud.neo("slurm", "cluster", "check", cluster.name, "--report-only", code=None)
    finally:
        cluster.in_pod("login-0", ENTER_ROOT, "mv", f"{program}.real", program)
    found = cluster.ssh(f"cat {SHARED}/imitated; rm {SHARED}/imitated").splitlines()
    assert found and set(found) == {"[]"}


OUTPUTS = (
    "/usr/local/sbin/neocloud-entrypoint",
    "/usr/local/lib/neocloud/enter-root",
    "/etc/passwd",
    "/proc/1/root/usr/local/lib/neocloud/enter-root",
    f"{SHARED}/link-to-the-entrypoint",
)


def test_output_of_a_job_is_not_written_over_the_daemons_files(cluster: Cluster) -> None:
    """slurmd and slurmstepd open these files as root, outside the shared root."""
    cluster.ssh(f"ln -s /usr/local/sbin/neocloud-entrypoint {SHARED}/link-to-the-entrypoint")
    for path in OUTPUTS:
        cluster.sbatch("echo written", f"--output={path}", "--no-requeue", "--nodelist=worker-0")
    cluster.run_job(
        "\n".join(f"sbcast --force escape.py {path} 2>&1 | head -1" for path in OUTPUTS),
        "--nodelist=worker-0",
    )
    cluster.wait_until_idle()
    cluster.ssh(f"rm {SHARED}/link-to-the-entrypoint")


def test_links_in_the_shared_root_lead_no_mount_and_no_file_into_the_daemons_root(cluster: Cluster) -> None:
    """Paths that the entrypoint, Slurm's Prolog and the health check touch, also while a node starts."""
    cluster.ssh(
        "rm -r /opt/neocloud /srv /var/lib/neocloud; ln -s /usr/local /opt/neocloud; ln -s /etc /srv;"
        "ln -s /usr/local/lib/neocloud /var/lib/neocloud"
    )
    try:
        removed = cluster.remove_pods("worker-1")

        def reason() -> bool:
            new = [number for number in cluster.containers("worker-1", "ID") if number not in removed]
            return any("shared-root: /opt/neocloud/models" in cluster.logs(number) for number in new)

        wait_until(reason, "the node says why it does not start", seconds=240)
        checked = cluster.in_pod(
            "worker-0", "sh", "-c", f"{LIBRARY}/check-node; {LIBRARY}/shared-root ask; ls /srv"
        )
        assert "slurm" not in checked
    finally:
        heal = "rm /opt/neocloud /srv /var/lib/neocloud; mkdir /srv /var/lib/neocloud"
        cluster.in_pod("login-0", ENTER_ROOT, "sh", "-c", heal)
        cluster.remove_pods("worker-0")
    cluster.wait_until_idle(seconds=240)


SWAP = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
os.makedirs("/race/slurm", exist_ok=True)
os.symlink("/etc", "/race.link")
print("swapping", flush=True)
while not os.path.exists("/race.stop"):
    libc.renameat2(-100, b"/race", -100, b"/race.link", 2)
"""


def test_a_folder_that_is_swapped_for_a_link_a_thousand_times_is_never_followed(cluster: Cluster) -> None:
    """Slurm's Prolog does this before each job."""
    ssh = ["ssh", "-F", str(cluster.ssh_config), cluster.name, "timeout 120 python3 -u -c", f"'{SWAP}'"]
    with subprocess.Popen(ssh, stdout=subprocess.PIPE, text=True) as swapping:
        assert swapping.stdout and swapping.stdout.readline() == "swapping\n"
        asking = (
            f"for i in $(seq 1000); do {LIBRARY}/shared-root ask;"
            " [ ! -e /race/slurm/slurm.key ] || echo led out; done; mountpoint -q /race && echo shown"
        )
        said = cluster.in_pod("worker-0", "bash", "-c", asking)
        cluster.ssh("touch /race.stop")
    cluster.ssh("rm -rf /race /race.link /race.stop")
    cluster.in_pod("worker-0", "sh", "-c", "umount --lazy /race; rmdir /race")
    assert said == "shown\n"


def test_sessions_and_jobs_do_what_they_did(cluster: Cluster, tmp_path: Path) -> None:
    """ssh with a terminal, scp, forwarding, sudo and su, ping; output in a folder made just before."""
    (tmp_path / "there").write_text("kept\n")
    cluster.copy_in(tmp_path / "there", "/root/there")
    cluster.copy_out("/root/there", tmp_path / "back")
    assert (tmp_path / "back").read_text() == "kept\n"
    ssh = ["ssh", "-F", str(cluster.ssh_config)]
    said = subprocess.run([*ssh, "-tt", cluster.name, "tty"], capture_output=True, text=True, check=True)
    assert said.stdout.startswith("/dev/pts/")
    forwarded = [*ssh, "-W", "127.0.0.1:22", cluster.name]
    banner = subprocess.run(forwarded, input="", capture_output=True, text=True, check=False)
    assert banner.stdout.startswith("SSH-2.0-")
    cluster.ssh(
        "useradd --create-home --shell /bin/bash ann; echo 'ann ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/ann"
    )
    assert cluster.ssh("su - ann -c 'sudo id --user --name'") == "root"
    cluster.ssh(
        "userdel --remove ann; rm /etc/sudoers.d/ann; ping -c 1 worker-0 >/dev/null; mkdir /made-just-now"
    )
    job = cluster.sbatch("hostname", "--output=/made-just-now/out", "--nodelist=worker-0")
    assert cluster.wait_for_job(job) == "COMPLETED"
    assert cluster.ssh("cat /made-just-now/out; rm -r /made-just-now") == "worker-0"
    cluster.in_pod("worker-0", "sh", "-c", "umount --lazy /made-just-now; rmdir /made-just-now")
