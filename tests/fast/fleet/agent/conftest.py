import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from neocloud.fleet.agent import delivery
from neocloud.fleet.agent.bundle import write_bundle
from neocloud.fleet.agent.delivery import AgentAnswer
from neocloud.fleet.agent.document import Document, decode
from neocloud.fleet.nodes.events import Verdict
from neocloud.fleet.policy.actions import Action
from tests.fast.engines.gpus.machine import build_nvml
from tests.fast.fleet.agent import trees

GPU = "gpu\n"


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_nvml(tmp_path_factory.mktemp("nvml"))


@dataclass
class Node:
    """A node that is made up: its tree, what it should have, and its GPUs by the stand-in for NVML."""

    root: Path
    library: Path
    scenario: Path
    expect: Path
    expected: dict[str, object] = field(default_factory=lambda: dict(trees.EXPECTED))

    def gpus(self, *scenario: str) -> None:
        """Give it GPUs: for each the lines that change a healthy one."""
        self.scenario.write_text("".join(f"gpu\n{lines}\n" for lines in scenario))

    def nvml(self, text: str) -> None:
        self.scenario.write_text(text)

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "LD_LIBRARY_PATH": str(self.library.parent),
            "MOCK_NVML": str(self.scenario),
            "MOCK_KMSG": str(self.root / "dev/kmsg"),
        }

    def command(self, *words: str) -> list[str]:
        self.expect.write_text(json.dumps(self.expected))
        program = [sys.executable, "-I", "-m", "neocloud.fleet.agent", *words]
        return [*program, "--root", str(self.root), "--expect", str(self.expect), "--host", "node-1"]

    def check(self, seconds: float = 0.0) -> Document:
        """Run the agent's program once, and read what it prints as the control plane does."""
        command = self.command("check", "--seconds", str(seconds))
        ran = subprocess.run(command, env=self.environment, capture_output=True, check=False, timeout=60)
        assert ran.returncode == 0, ran.stderr.decode()
        return decode(ran.stdout, host="node-1")

    def verdicts(self, seconds: float = 0.0) -> dict[str, Verdict]:
        return {each.check: each for each in self.check(seconds).verdicts}


@pytest.fixture
def node(tmp_path: Path, nvml_library: Path) -> Node:
    made = Node(
        trees.h100_node(tmp_path / "root"), nvml_library, tmp_path / "gpus.txt", tmp_path / "expect.json"
    )
    made.gpus(*[""] * 8)
    return made


def bad(verdicts: dict[str, Verdict]) -> dict[str, tuple[str, Action]]:
    """Return what did not pass."""
    return {
        name: (each.status.value, each.action) for name, each in verdicts.items() if each.status != "pass"
    }


class Bundle:
    """The agent as one file, run by an interpreter without this project's packages."""

    def __init__(self, node: Node, folder: Path) -> None:
        self.node, self.spool, self.last = node, folder / "spool", folder / "last"
        self.program = folder / "agent.pyz"
        write_bundle(self.program)

    @contextmanager
    def watching(self) -> Iterator[subprocess.Popen[bytes]]:
        more = ("--root", str(self.node.root), "--expect", str(self.node.expect), "--host", "node-1")
        self.node.command()
        folders = ("--spool", str(self.spool), "--last", str(self.last))
        command = [sys.executable, "-I", "-S", str(self.program), "watch", "--pod", "--interval", "0.1"]
        agent = subprocess.Popen([*command, *folders, *more], env=self.node.environment)
        try:
            yield agent
        finally:
            agent.kill()
            agent.wait()

    def ask(self, after: int = 0, of: str = "", trusted: str = "", inventory: str = "") -> AgentAnswer:
        folders = ("--spool", str(self.spool), "--last", str(self.last))
        command = [sys.executable, "-I", "-S", str(self.program), "carry", *folders]
        command += ["--after", str(after), "--of", of, "--trusted", trusted, "--inventory", inventory]
        ran = subprocess.run(command, capture_output=True, check=True, timeout=30)
        return delivery.decode(ran.stdout, host="node-1", at=time.time())


@pytest.fixture
def bundle(node: Node, tmp_path: Path) -> Bundle:
    (tmp_path / "bundle").mkdir()
    return Bundle(node, tmp_path / "bundle")
