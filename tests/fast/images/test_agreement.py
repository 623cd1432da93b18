"""Files of the images that must agree with each other and with the pods that use them."""

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from neocloud.services.slurm.render import ClusterSecrets, ClusterView, NodeSetView, pods
from neocloud.services.slurm.render.configuration import MAX_NODES, configuration_files
from tests import ROOT

IMAGES = ROOT / "images"
INSIDE = IMAGES / "slurm" / "rootfs"
ENTRYPOINT = (INSIDE / "usr/local/sbin/neocloud-entrypoint").read_text()
VIEW = ClusterView(
    name="bank",
    namespace="slurm-bank",
    image="image",
    node_sets=(NodeSetView("worker", 1, 1, 1024, gpus=1, gpu_type="l40s"),),
    secrets=ClusterSecrets(b"", b"", "", "", ""),
    worker_host_public_key="",
    authorized_keys=(),
    shared_root_claim="shared-root",
)


def shell_scripts() -> list[Path]:
    files = [path for path in IMAGES.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return [path for path in files if path.read_bytes().startswith(b"#!/bin/bash")]


@pytest.mark.parametrize("script", shell_scripts(), ids=lambda path: path.name)
def test_scripts_are_executable_and_well_formed(script):
    assert script.stat().st_mode & 0o111 == 0o111
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0


def test_the_entrypoint_knows_every_role_that_a_pod_asks_for():
    (known,) = re.findall(r"^([a-z |]+)\) \"start_", ENTRYPOINT, re.MULTILINE)
    asked = {container.args[0] for pod in pods(replace(VIEW, login_count=2)) for container in pod.containers}
    assert asked == set(known.split(" | "))
    assert all(f"start_{role}()" in ENTRYPOINT for role in asked)


def test_keys_are_mounted_where_the_entrypoint_installs_them_from():
    for role, secrets in {
        "controller": {"slurm-key", "jwt-key"},
        "accounting": {"slurm-key", "jwt-key", "accounting"},
        "login": {"slurm-key"},
        "worker": {"slurm-key"},
    }.items():
        body = re.search(rf"^start_{role}\(\) {{\n(.*?)^}}", ENTRYPOINT, re.MULTILINE | re.DOTALL)
        assert body is not None
        assert set(re.findall(r"install_key (\S+)", body.group(1))) == secrets
        container = next(
            container for pod in pods(VIEW) for container in pod.containers if container.name == role
        )
        mounted = {mount.mount_path for mount in container.volume_mounts}
        assert {f"/etc/neocloud/secrets/{name}" for name in secrets} <= mounted


def test_programs_named_in_the_configuration_are_in_the_image():
    for program in re.findall(
        r"^(?:Prolog|Epilog|HealthCheckProgram)=(\S+)", configuration_files(VIEW)["slurm.conf"], re.M
    ):
        assert (INSIDE / program.lstrip("/")).stat().st_mode & 0o111


def test_both_images_speak_of_the_same_client_programs():
    """SLURM-04: each program of the bundle has its link in the shared root, and no link dangles."""
    bundle, links = (
        set(re.findall(r"\bs[a-z]+\b", match.group(1)))
        for match in (
            re.search(r'clients="(.*?)"', (IMAGES / "slurm/finish").read_text(), re.DOTALL),
            re.search(r"for client in (.*?); do", (IMAGES / "jail/finish").read_text(), re.DOTALL),
        )
        if match
    )
    assert {"sbatch", "srun", "squeue", "sacct", "scontrol", "sinfo"} <= bundle
    assert links == bundle


def test_a_node_set_may_be_as_large_as_its_gpu_lines_say():
    assert f"MaxNodeCount={MAX_NODES}" in configuration_files(VIEW)["slurm.conf"]
    assert f"worker-[0-{MAX_NODES - 1}]" in configuration_files(VIEW)["gres.conf"]
