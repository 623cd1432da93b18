"""What this machine must offer before anything is started, checked early so that errors come before work."""

import os
import re
import shutil
import subprocess

from neocloud.client.errors import ClientError

OLDEST_PODMAN = (4, 3)
TOOLS = {"podman": "podman", "runc": "runc", "nft": "nftables"}
INSTALL = "Install it with `make setup` in the checkout, or `apt-get install {package}`"


def check_machine() -> None:
    """Raises ClientError that says what is missing and how to get it."""
    if os.geteuid() != 0:
        raise ClientError(
            "PERMISSION_DENIED",
            "Running containers takes root, for networks and mounts, and you are not root",
            "Run it as root, for example with sudo",
        )
    for tool, package in TOOLS.items():
        if shutil.which(tool) is None:
            raise ClientError(
                "FAILED_PRECONDITION", f"{tool} is not installed", INSTALL.format(package=package)
            )
    _check_podman_version()


def _check_podman_version() -> None:
    answer = subprocess.run(["podman", "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"(\d+)\.(\d+)", answer.stdout)
    oldest = ".".join(map(str, OLDEST_PODMAN))
    if found is None:
        said = answer.stderr.strip() or answer.stdout.strip() or "nothing"
        raise ClientError(
            "FAILED_PRECONDITION",
            f"`podman --version` does not say its version; it says: {said}",
            INSTALL.format(package="podman"),
        )
    if (int(found[1]), int(found[2])) < OLDEST_PODMAN:
        raise ClientError(
            "FAILED_PRECONDITION",
            f"Podman {found[0]} is too old: {oldest} or newer is needed",
            "Upgrade it; Debian 12 and newer have one that is new enough",
        )
