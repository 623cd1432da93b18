"""IAC-01: the official Terraform provider, led here by `neo client-config terraform`, on an emulator.

The provider is not to be had as a module: NEOCLOUD_TEST_TERRAFORM_PROVIDER names the program, and without it
the test says not_run.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from neocloud.testing.emulator import Emulator, emulator

VARIABLE = "NEOCLOUD_TEST_TERRAFORM_PROVIDER"
SOURCE = "example.org/nebius/nebius"
PROGRAM = "terraform-provider-nebius"
NOTHING_TO_CHANGE = 0
"""Exit code of `plan -detailed-exitcode`; 2 where something would change."""


def configuration(tenant_id: str, gibibytes: int) -> dict[str, object]:
    """Return a project without a region and what lies in it."""
    project = {"parent_id": "${nebius_iam_v1_project.bank.id}"}
    network = {"network_id": "${nebius_vpc_v1_network.bank.id}"}
    disk = {"type": "NETWORK_SSD", "block_size_bytes": 4096, "size_gibibytes": gibibytes}
    return {
        "terraform": {"required_providers": {"nebius": {"source": SOURCE}}},
        "provider": {"nebius": {}},
        "resource": {
            "nebius_iam_v1_project": {"bank": {"parent_id": tenant_id, "name": "terraform-bank"}},
            "nebius_iam_v1_service_account": {"bank": {**project, "name": "builder"}},
            "nebius_vpc_v1_network": {"bank": {**project, "name": "inner"}},
            "nebius_vpc_v1_subnet": {"bank": {**project, **network, "name": "workers"}},
            "nebius_compute_v1_disk": {"bank": {**project, **disk, "name": "data"}},
            "nebius_storage_v1_bucket": {"bank": {**project, "name": "terraform-bank-data"}},
        },
    }


class Terraform:
    """A folder with a configuration, and a provider that is used as it lies on the disk."""

    def __init__(self, folder: Path, provider: Path, cloud: Emulator) -> None:
        self.folder = folder / "infrastructure"
        self.folder.mkdir()
        programs = folder / "programs"
        programs.mkdir()
        (programs / PROGRAM).symlink_to(provider)
        settings = folder / "terraform.rc"
        installed = f'dev_overrides {{ "{SOURCE}" = "{programs}" }}'
        settings.write_text(f"provider_installation {{\n  {installed}\n  direct {{}}\n}}\n")
        self.environment = {
            **os.environ,
            **cloud.environment,
            "HOME": str(folder),
            "TF_CLI_CONFIG_FILE": str(settings),
            "SSL_CERT_FILE": str(cloud.home / "tls" / "ca.pem"),
            "CHECKPOINT_DISABLE": "1",
        }

    def write(self, configuration: dict[str, object]) -> None:
        (self.folder / "main.tf.json").write_text(json.dumps(configuration))

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = ["terraform", f"-chdir={self.folder}", *words, "-no-color", "-input=false"]
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=False, timeout=600
        )

    def succeed(self, *words: str) -> None:
        done = self.run(*words)
        assert done.returncode == 0, done.stdout + done.stderr

    def require_no_change(self) -> None:
        done = self.run("plan", "-detailed-exitcode")
        assert done.returncode == NOTHING_TO_CHANGE, done.stdout + done.stderr


@pytest.fixture
def provider() -> Path:
    """The program, as an absolute path."""
    given = os.environ.get(VARIABLE)
    if not given:
        pytest.skip(f"not_run: {VARIABLE} names no program of the provider, such as /opt/{PROGRAM}")
    if shutil.which("terraform") is None:
        pytest.skip("not_run: terraform is not on this machine")
    found = Path(given).absolute()
    assert found.is_file() and os.access(found, os.X_OK), f"{VARIABLE}: {found} is no program"
    return found


def test_the_official_provider_creates_changes_and_destroys(provider: Path, tmp_path: Path) -> None:
    with emulator(tls=True) as cloud:
        terraform = Terraform(tmp_path, provider, cloud)
        neo = [Path(sys.executable).with_name("neo"), "client-config", "terraform", "--directory"]
        subprocess.run([*neo, terraform.folder], env=terraform.environment, check=True)
        terraform.write(configuration(cloud.tenant_id, gibibytes=10))
        terraform.succeed("apply", "-auto-approve")
        terraform.require_no_change()
        terraform.write(configuration(cloud.tenant_id, gibibytes=20))
        terraform.succeed("apply", "-auto-approve")
        terraform.require_no_change()
        terraform.succeed("destroy", "-auto-approve")
        left = cloud.client.call("nebius.iam.v1.ProjectService/List", {"parent_id": cloud.tenant_id})
        assert "terraform-bank" not in [each["metadata"]["name"] for each in left["items"]]
