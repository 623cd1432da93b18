"""What this machine allows: Podman and its parts, cgroups, limits.

Looks, never changes anything. Raises EngineUnavailable, with what to install or do, when Podman cannot be
used at all; lesser lacks become warnings that `neo status` shows.
"""

import os
import re
import resource
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from neocloud.engines.base import EngineUnavailable

OLDEST_PODMAN = (4, 3)
_CAP_SYS_RESOURCE = 24
_INSTALL = "apt-get install podman runc catatonit netavark nftables"


@dataclass(frozen=True)
class Host:
    """Facts about the machine that the configuration is made from."""

    podman: str
    podman_version: str
    runtime: str
    init: str
    cgroup_version: str
    limits: tuple[tuple[str, int, int], ...]
    """(name, soft, hard) that a container can be given; -1 is unlimited."""
    bridges_pass_filters: bool
    warnings: tuple[str, ...] = ()


def find_host(search_path: str | None = None) -> Host:
    """Look at the machine; `search_path` replaces PATH in tests."""
    if os.geteuid() != 0:
        raise EngineUnavailable("The Podman engine makes networks and mounts and must run as root; use sudo.")
    podman = _program("podman", search_path)
    version = _podman_version(podman)
    cgroup_version = _cgroup_version()
    warnings = []
    bridges_pass_filters = Path("/proc/sys/net/bridge/bridge-nf-call-iptables").exists()
    if not bridges_pass_filters:
        warnings.append(
            "Kernel module br_netfilter is not loaded: namespaces are isolated, but traffic between pods on "
            "one bridge cannot be filtered, so that there can be no security groups and no virtual networks. "
            "`modprobe br_netfilter` changes that."
        )
    if not shutil.which("conntrack", path=search_path):
        warnings.append(
            "The program conntrack was not found: when a public address moves to another pod, connections "
            "that are open stay with the old one. Install it with: apt-get install conntrack"
        )
    for program in ("nft", "mount", "umount", "setsid"):
        _program(program, search_path)
    return Host(
        podman=podman,
        podman_version=version,
        runtime=_runtime(cgroup_version, search_path),
        init=_program("catatonit", search_path),
        cgroup_version=cgroup_version,
        limits=_limits(),
        bridges_pass_filters=bridges_pass_filters,
        warnings=tuple(warnings),
    )


def _program(name: str, search_path: str | None) -> str:
    places = search_path or f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin:/usr/libexec/podman"
    found = shutil.which(name, path=places)
    if not found:
        raise EngineUnavailable(f"The program {name} was not found; install it with: {_INSTALL}")
    return found


def _podman_version(podman: str) -> str:
    answer = subprocess.run([podman, "--version"], capture_output=True, text=True, check=False)
    match = re.search(r"(\d+)\.(\d+)(\.\d+)?", answer.stdout)
    if answer.returncode or not match:
        raise EngineUnavailable(
            f"{podman} does not work: {(answer.stderr or answer.stdout).strip()}; "
            f"reinstall it with: {_INSTALL}"
        )
    if (int(match[1]), int(match[2])) < OLDEST_PODMAN:
        oldest = ".".join(str(part) for part in OLDEST_PODMAN)
        raise EngineUnavailable(
            f"Podman {match[0]} is too old, {oldest} or newer is needed; Debian 12 and later carry one."
        )
    return match[0]


def _cgroup_version() -> str:
    if Path("/sys/fs/cgroup/cgroup.controllers").exists():
        return "v2"
    return "v1 hybrid" if Path("/sys/fs/cgroup/unified").exists() else "v1"


def _runtime(cgroup_version: str, search_path: str | None) -> str:
    """crun refuses hybrid cgroups, so on version 1 only runc will do."""
    names = ("crun", "runc") if cgroup_version == "v2" else ("runc",)
    for name in names:
        if shutil.which(name, path=search_path):
            return name
    raise EngineUnavailable(
        f"With cgroup {cgroup_version} the container runtime {' or '.join(names)} is needed; "
        f"install it with: {_INSTALL}"
    )


def _limits() -> tuple[tuple[str, int, int], ...]:
    """Limits for containers: generous where we may raise them, else what we have ourselves."""
    status = Path("/proc/self/status").read_text()
    effective = int(re.search(r"CapEff:\s*([0-9a-f]+)", status)[1], 16)  # type: ignore[index]
    pid_max = int(Path("/proc/sys/kernel/pid_max").read_text())
    if effective >> _CAP_SYS_RESOURCE & 1:
        return (("nofile", 1048576, 1048576), ("nproc", -1, -1), ("memlock", -1, -1))
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    processes = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    memory = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
    # Podman lowers its own process limit to pid_max, and nothing it starts can go above that again.
    processes = pid_max if processes == resource.RLIM_INFINITY else min(processes, pid_max)
    return (("nofile", files, files), ("nproc", processes, processes), ("memlock", memory, memory))
