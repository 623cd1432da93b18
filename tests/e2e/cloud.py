"""A cloud in a folder of its own, driven as its users drive it: the `neo` command and the official SDK."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from nebius.base.options import INSECURE
from nebius.base.resolver import Constant
from nebius.sdk import SDK

from neocloud.client.connection import CHANNEL_OPTIONS, Client, invoke
from neocloud.client.credentials import ExchangedToken, read_credentials
from neocloud.core import contract
from neocloud.engines.podman.layout import Layout
from neocloud.engines.podman.service import environment
from tests import leftovers
from tests.contract_cache import cache_with_contract
from tests.neo_server import program

NEO = Path(sys.executable).with_name("neo")
"""The installed program, for tests of how it starts; `Cloud.neo` is quicker."""


@dataclass
class Cloud:
    """`folder` holds all it ever writes: state folder, configuration, cache, the user's keys."""

    folder: Path
    variables: Mapping[str, str] = field(default_factory=dict)
    """More environment for `neo`."""
    clients: dict[tuple[str, int], Client] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def prepare(cls, folder: Path, images: Path | None) -> "Cloud":
        """Not started yet. Its images are those of the given folder, shared with other clouds."""
        cloud = cls(folder)
        leftovers.record(cloud.home)
        cloud.home.mkdir(mode=0o700, parents=True)
        (folder / "user").mkdir()
        cache_with_contract(folder / "user" / "cache")
        if images is not None:
            # A state folder must be new or marked as ours, and this one already holds something.
            (cloud.home / "neo.json").write_text("{}")
            (cloud.home / "images").symlink_to(images)
        return cloud

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def environment(self) -> dict[str, str]:
        user = self.folder / "user"
        own = {
            "HOME": str(user),
            "XDG_CONFIG_HOME": str(user / "config"),
            "XDG_CACHE_HOME": str(user / "cache"),
            "NEOCLOUD_HOME": str(self.home),
            "NO_COLOR": "1",
        }
        return {**os.environ, **own, **self.variables}

    def neo(
        self, *arguments: str, code: int | None = 0, stdin: str = "", seconds: float = 600.0
    ) -> subprocess.CompletedProcess[str]:
        """Run one command line. Fails the test unless it exits with `code`; None takes any."""
        done = subprocess.run(
            [program(), *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=seconds,
            env=self.environment,
            check=False,
        )
        if code is not None:
            said = f"neo {' '.join(arguments)}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
            assert done.returncode == code, said
        return done

    def start_neo(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Run one command line beside the test."""
        quiet = subprocess.DEVNULL
        return subprocess.Popen(
            [program(), *arguments], stdin=quiet, stdout=quiet, stderr=quiet, env=self.environment
        )

    def neo_json(self, *arguments: str) -> Any:
        return json.loads(self.neo(*arguments, "--output", "json").stdout)

    def call(self, path: str, request: Mapping[str, Any]) -> Any:
        """Ask the API from this process: for conditions that are looked at again and again.

        It stays signed in at one server, since each look would change the cloud that it looks at otherwise.
        """
        server = self.server["grpc"], self.server["pid"]
        if server not in self.clients:
            for client in self.clients.values():
                client.close()
            self.clients = {server: open_client(self)}
        return self.clients[server].call(path, request)

    def clusters(self) -> list[dict[str, Any]]:
        answer = self.call("neocloud.slurm.v1.ClusterService/List", {"parent_id": self.project_id})
        return [contract.to_dict(item) for item in answer.items]

    def up(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.neo("up", "--grpc-port", "0", "--http-port", "0", *arguments)

    @property
    def server(self) -> dict[str, Any]:
        """Return the record that the running server wrote about itself."""
        return json.loads((self.home / "server.json").read_text())

    @property
    def project_id(self) -> str:
        return self.server["project_id"]

    def sdk(self) -> SDK:
        """The official SDK, signed in with the credentials file that `neo up` left."""
        return SDK(
            resolver=Constant(self.server["grpc"]),
            options=[(INSECURE, True)],
            credentials_file_name=str(self.home / "credentials.json"),
            user_agent_prefix="tests/1.0",
        )

    def podman(self, *arguments: str) -> str:
        """Podman itself, on this cloud's containers: to break them from outside."""
        return run(["podman", *arguments], env=self.podman_environment)

    def removes(self, *containers: str) -> bool:
        """Remove containers as an accident would. False where Podman met one that was just stopping."""
        command = ["podman", "rm", "--force", "--ignore", "--depend", "--time=0", *containers]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=180, env=self.podman_environment
        )
        assert done.returncode == 0 or "container state improper" in done.stderr, done.stderr
        return done.returncode == 0

    @property
    def podman_environment(self) -> dict[str, str]:
        return {**os.environ, **environment(Layout.of(self.home))}


def open_client(cloud: Cloud) -> Client:
    """Connect as `neo` does, but without its token cache."""
    credentials, endpoint = read_credentials(cloud.home / "credentials.json"), cloud.server["grpc"]
    channel = grpc.insecure_channel(endpoint, options=CHANNEL_OPTIONS)
    tokens = ExchangedToken(credentials, lambda path, request: invoke(channel, endpoint, path, request), None)
    return Client(channel, endpoint, tokens)


def run(command: Sequence[str | Path], **options: Any) -> str:
    """Standard output of a command that must succeed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1800, **options)
    words = " ".join(str(word) for word in command)
    assert done.returncode == 0, f"{words}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout
