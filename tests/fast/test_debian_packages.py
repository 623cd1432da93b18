"""scripts/install-debian-packages: what it installs, and what it says where something is missing."""

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

from tests import ROOT

SCRIPT = ROOT / "scripts" / "install-debian-packages"
LISTED = re.compile(r"^  (\S+) ", re.MULTILINE)

RELEASES = {
    "bookworm": "aardvark-dns=1.4.0-3 buildah=1.28.2+ds1-3+deb12u1+b3"
    " busybox-static=1:1.35.0-4+deb12u1+b1 ca-certificates=20250419~deb12u2"
    " catatonit=0.1.7-1+b2 chromium=156.0.8078.79-1~deb12u1 conntrack=1:1.4.7-1+b2 dosfstools=4.2-1"
    " debian-archive-keyring=2023.3+deb12u2 e2fsprogs=1.47.0-2+b2 fdisk=2.38.1-5+deb12u3 fuse3=3.14.0-4"
    " gcc=4:12.2.0-3"
    " iperf3=3.12-1+deb12u2 iproute2=6.1.0-3"
    " iptables=1.8.9-2 libc6-dev=2.36-9+deb12u14 mmdebstrap=1.3.5-7"
    " mtools=4.0.33-1+really4.0.32-1 netavark=1.4.0-3"
    " nftables=1.0.6-2+deb12u2 nodejs=18.20.4+dfsg-1~deb12u3"
    " npm=9.2.0~ds1-1 openssh-client=1:9.2p1-2+deb12u10"
    " podman=4.3.1+ds1-8+deb12u1+b3 postgresql=15+248+deb12u2 python3-venv=3.11.2-1+b1"
    " qemu-utils=1:7.2+dfsg-7+deb12u18+b3 rclone=1.60.1+dfsg-2+b5 restic=0.14.0-1+b5"
    " rsync=3.5.0+ds1-0+deb12u1 runc=1.1.5+ds1-1+deb12u1 s3cmd=2.3.0-1 s3fs=1.90-1"
    " skopeo=1.9.3+ds1-1+b10 wrk=4.1.0-3+b2",
    "trixie": "aardvark-dns=1.14.0-3 buildah=1.39.3+ds1-1+b7"
    " busybox-static=1:1.37.0-6+b9 ca-certificates=20250419+deb13u1"
    " catatonit=0.2.1-2+b14 chromium=156.0.8078.79-1~deb13u1 conntrack=1:1.4.8-2 dosfstools=4.2-1.2"
    " debian-archive-keyring=2025.1 e2fsprogs=1.47.2-3+b12 fdisk=2.41.5-0+deb13u1 fuse3=3.17.2-3"
    " gcc=4:14.2.0-1"
    " iperf3=3.18-2+deb13u2 iproute2=6.15.0-1"
    " iptables=1.8.11-2 libc6-dev=2.41-12+deb13u5 mmdebstrap=1.5.7-1+deb13u1"
    " mtools=4.0.48-1 netavark=1.14.0-2 nftables=1.1.3-1"
    " nodejs=20.19.2+dfsg-1+deb13u3 npm=9.2.0~ds1-3 openssh-client=1:10.0p1-7+deb13u4"
    " podman=5.4.2+ds1-2+b2 postgresql=17+278+deb13u1 python3-venv=3.13.5-1"
    " qemu-utils=1:10.0.13+ds-0+deb13u1 rclone=1.60.1+dfsg-4 restic=0.18.0-1+b4"
    " rsync=3.5.0+ds1-0+deb13u2 runc=1.1.15+ds1-2+b4 s3cmd=2.4.0-3 s3fs=1.95-1 skopeo=1.18.0+ds1-1+b5"
    " wrk=4.1.0-4+b1",
}
"""What the package lists of Debian's releases offered on 23 November 2026. An engineer who adds a package to
the script looks it up in both.
"""


@dataclass
class Machine:
    """A machine: the versions that its lists offer, and those that are installed."""

    folder: Path
    release: Mapping[str, str]
    installed: Mapping[str, str] = field(default_factory=dict[str, str])

    def run(self, group: str, *, user: int = 0) -> "subprocess.CompletedProcess[str]":
        programs = {
            # The last argument is the name.
            "dpkg-query": f'for name; do :; done; cat "{self.folder}/installed/$name" 2>/dev/null',
            "apt-get": f'echo "$*" >>{self.folder}/calls',
            "apt-cache": f'cat "{self.folder}/release/$2" 2>/dev/null || true',
            "id": f"echo {user}",
        }
        (self.folder / "release").mkdir()
        (self.folder / "installed").mkdir()
        for name, version in self.installed.items():
            (self.folder / "installed" / name).write_text(f"installed {version}\n")
        for name, version in self.release.items():
            policy = f"{name}:\n  Installed: (none)\n  Candidate: {version}\n"
            (self.folder / "release" / name).write_text(policy)
        for name, text in programs.items():
            (self.folder / name).write_text(f"#!/bin/sh\n{text}\n")
            (self.folder / name).chmod(0o755)
        environment = {**os.environ, "PATH": f"{self.folder}:/usr/bin:/bin"}
        return subprocess.run(
            ["bash", SCRIPT, group], env=environment, capture_output=True, text=True, timeout=60, check=False
        )

    @property
    def calls(self) -> list[str]:
        file = self.folder / "calls"
        return file.read_text().splitlines() if file.exists() else []


@cache
def names() -> frozenset[str]:
    done = subprocess.run(["bash", SCRIPT, "list"], capture_output=True, text=True, check=True, timeout=60)
    return frozenset(name.partition(">=")[0] for name in LISTED.findall(done.stdout))


@pytest.mark.parametrize("release", RELEASES)
def test_all_that_is_missing_is_installed_in_each_release(tmp_path: Path, release: str) -> None:
    machine = Machine(tmp_path, dict(pair.split("=", 1) for pair in RELEASES[release].split()))
    assert names() <= machine.release.keys()
    done = machine.run("run")
    assert done.returncode == 0, done.stderr
    update, install = machine.calls
    assert update.split()[-1] == "update"
    _, _, packages = install.partition(" install --no-install-recommends ")
    assert {"podman", "mmdebstrap", "python3-venv"} < {*packages.split()} < names()


@pytest.mark.parametrize(
    ("podman", "code"), [("3.4.4+ds1-1ubuntu1", 1), ("(none)", 1), ("4.3.1+ds1-8", 0), ("5.4.2+ds1-2", 0)]
)
def test_a_release_without_a_new_enough_podman_is_refused_before_anything_is_installed(
    tmp_path: Path, podman: str, code: int
) -> None:
    machine = Machine(tmp_path, {**dict.fromkeys(names(), "1.0"), "podman": podman})
    done = machine.run("run")
    assert done.returncode == code
    assert len(machine.calls) == (1 if code else 2)
    if code:
        assert "do not have: podman>=4.3." in done.stderr and "universe" in done.stderr


@pytest.mark.parametrize(
    ("podman", "is_missing"),
    [("3.4.4+ds1-1ubuntu1", True), ("4:4.2.0-1", True), ("4.3.1+ds1-8", False), ("4:5.4.2-1", False)],
)
def test_an_installed_podman_that_is_too_old_is_replaced(
    tmp_path: Path, podman: str, is_missing: bool
) -> None:
    installed = {**dict.fromkeys(names(), "1.0"), "podman": podman}
    machine = Machine(tmp_path, {**installed, "podman": "5.4.2+ds1-2"}, installed)
    done = machine.run("run")
    assert done.returncode == 0, done.stderr
    assert [each.split()[-1] for each in machine.calls] == (["update", "podman"] if is_missing else [])
    assert ("missing here, or too old" in done.stdout) == is_missing


def test_without_a_newer_podman_the_old_one_is_named_with_what_to_do(tmp_path: Path) -> None:
    installed = {**dict.fromkeys(names(), "1.0"), "podman": "3.4.4"}
    machine = Machine(tmp_path, installed, installed)
    done = machine.run("run")
    assert done.returncode == 1 and len(machine.calls) == 1
    assert "do not have: podman>=4.3." in done.stderr and "Debian 12 and newer have them" in done.stderr


def test_without_root_the_command_is_named_and_nothing_is_done(tmp_path: Path) -> None:
    machine = Machine(tmp_path, {})
    done = machine.run("run", user=1000)
    assert done.returncode == 1 and f"sudo bash {SCRIPT} run" in done.stderr
    assert machine.calls == []
