"""Two machines for a test: network namespaces with a cable between them. Nothing else reaches either one.

A laptop alone has a cable to the machine that runs the test, for clouds of real parts.
"""

import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests import leftovers
from tests.contract_cache import cache_with_contract

CLOUD_ADDRESS, LAPTOP_ADDRESS = "10.213.0.1", "10.213.0.2"
CLOUD_ADDRESS_6, LAPTOP_ADDRESS_6 = "fd13::1", "fd13::2"
COMMAND_SECONDS = 180
"""How long a command may take on a busy machine."""


@dataclass(frozen=True)
class Machine:
    """One side: commands run in its network, with a home directory of its own."""

    namespace: str
    home_directory: Path
    variables: Mapping[str, str] = field(default_factory=dict)

    def run(
        self, command: Sequence[str], *, text: str = "", **variables: str
    ) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            ["ip", "netns", "exec", self.namespace, *command],
            input=text,
            capture_output=True,
            text=True,
            check=False,
            timeout=COMMAND_SECONDS,
            env=self._environment() | variables,
        )

    def neo(self, *arguments: str, text: str = "", **variables: str) -> "subprocess.CompletedProcess[str]":
        return self.run([sys.executable, "-m", "neocloud.cli.main", *arguments], text=text, **variables)

    def python(self, program: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return self.run([sys.executable, "-c", program, *arguments])

    def _environment(self) -> dict[str, str]:
        """Return an environment without proxies, profiles and homes of the user who runs the tests."""
        kept = {name: os.environ[name] for name in ("PATH", "LANG", leftovers.RUN) if name in os.environ}
        modules = os.pathsep.join(path for path in sys.path if path)
        return {**kept, "PYTHONPATH": modules, "HOME": str(self.home_directory), **self.variables}


@contextmanager
def two_machines(folder: Path) -> Iterator[tuple[Machine, Machine]]:
    """Yield the machine of the cloud and the laptop."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    number = uuid.uuid4().hex[:6]
    names = [f"{leftovers.NAMESPACES}{os.getpid()}-{number}-{side}" for side in ("cloud", "laptop")]
    addresses = [(CLOUD_ADDRESS, CLOUD_ADDRESS_6), (LAPTOP_ADDRESS, LAPTOP_ADDRESS_6)]
    try:
        for name in names:
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        _ip(
            "-n", names[0], "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", names[1]
        )
        for name, (four, six) in zip(names, addresses, strict=True):
            _ip("-n", name, "address", "add", f"{four}/24", "dev", "cable")
            _ip("-n", name, "-6", "address", "add", f"{six}/64", "dev", "cable", "nodad")
            _ip("-n", name, "link", "set", "cable", "up")
        homes = [folder / "cloud-user", folder / "laptop-user"]
        for home in homes:
            home.mkdir(mode=0o700)
            cache_with_contract(home / ".cache")
        yield Machine(names[0], homes[0]), Machine(names[1], homes[1])
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


@contextmanager
def laptop(folder: Path) -> Iterator[tuple[str, Machine]]:
    """Yield an address of this machine that the laptop reaches, and the laptop."""
    name, cable = f"{leftovers.NAMESPACES}{os.getpid()}-laptop", f"cable{os.getpid()}"
    here, there = _free_addresses()
    home = folder / "laptop-user"
    home.mkdir(mode=0o700)
    cache_with_contract(home / ".cache")
    try:
        _ip("netns", "add", name)
        _ip("-n", name, "link", "set", "lo", "up")
        _ip("link", "add", cable, "type", "veth", "peer", "name", "cable", "netns", name)
        _ip("address", "add", f"{here}/30", "dev", cable)
        _ip("link", "set", cable, "up")
        _ip("-n", name, "address", "add", f"{there}/30", "dev", "cable")
        _ip("-n", name, "link", "set", "cable", "up")
        # As a router would: the laptop knows a way to everything behind this machine.
        _ip("-n", name, "route", "add", "default", "via", here)
        yield here, Machine(name, home)
    finally:
        subprocess.run(["ip", "link", "delete", cable], capture_output=True, check=False)
        subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def _free_addresses() -> tuple[str, str]:
    """Return two addresses of a range that no other test run on this machine has."""
    seen = _ip("-o", "-4", "address")
    first = os.getpid() % 50  # runs that start together begin at different ones
    numbers = [(first + step) % 50 * 4 for step in range(50)]
    free = next(number for number in numbers if f" 203.0.113.{number + 1}/" not in seen)
    return f"203.0.113.{free + 1}", f"203.0.113.{free + 2}"


def _ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"
    return done.stdout
