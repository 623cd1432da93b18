"""oras as people run it; `make clients-long` installs it."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.clients import installed


@dataclass
class Oras:
    folder: Path
    """Where it runs, and keeps its sign-in."""

    def __call__(self, command: str, *arguments: str, given: str = "") -> str:
        program = installed("trixie") / "usr" / "bin" / "oras"
        home = {"HOME": str(self.folder), "DOCKER_CONFIG": str(self.folder / "docker")}
        done = subprocess.run(
            [str(program), command, "--plain-http", *arguments],
            env={"PATH": os.environ["PATH"], **home},
            cwd=self.folder,
            input=given,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout
