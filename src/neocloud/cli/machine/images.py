"""Build the container images by the build script that each image's folder has.

A script is called as `images/NAME/build --output FOLDER`. It does nothing when the image is there and its
recipe has not changed; its lines are progress; interrupted, it cleans up after itself. What it built it
describes in `image.json`.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import neocloud
from neocloud.client.errors import ClientError

PACKAGE_ROOT = Path(neocloud.__file__).resolve().parent
CLEAN_UP_SECONDS = 30.0
MACHINE, LAUNCHER = "machine", "launcher"
ON_DEMAND = (LAUNCHER, MACHINE)
"""What only virtual machines need, in the order in which it is built; `neo up` does not wait for it."""


def image_names() -> list[str]:
    """What `neo up` builds."""
    return [name for name in all_image_names() if name not in ON_DEMAND]


def all_image_names() -> list[str]:
    return sorted(script.parent.name for script in _recipes().glob("*/build"))


def built_version(name: str, home: Path) -> str:
    """The version that is there; empty when none is."""
    try:
        return str(json.loads((home / "images" / name / "image.json").read_text())["version"])
    except (OSError, ValueError, KeyError):
        return ""


def build_image(
    name: str, home: Path, show: Callable[[str], None], *, force: bool = False, only: str | None = None
) -> None:
    """Make sure that one image is there; `show` gets each line of progress. Raises ClientError.

    `only` names one disk of the image `machine`.
    """
    options = [*(["--force"] if force else []), *(["--only", only] if only else [])]
    process = subprocess.Popen(
        [sys.executable, str(_recipes() / name / "build"), "--output", str(home / "images"), *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        umask=0o022,  # containers' programs of every user read what is built
    )
    said: list[str] = []
    with process:
        try:
            for line in process.stdout or ():
                said.append(line.rstrip())
                show(re.sub(r"^\[[^]]*\] ", "", line.strip()))
        except BaseException:
            _stop(process)
            raise
    if process.returncode != 0:
        raise ClientError(
            "FAILED_PRECONDITION",
            f"Building the image {name} failed: {_reason(said)}",
            f"Correct that and run `neo image build {name}`; what was built before is kept",
        )


def _stop(process: "subprocess.Popen[str]") -> None:
    """Let the script and what it started clean up; a build that hangs is killed."""
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(CLEAN_UP_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _reason(said: list[str]) -> str:
    """The script's own words, from its error on; else its last line."""
    starts = [number for number, line in enumerate(said) if line.startswith("error: ")]
    if starts:
        return "\n".join(said[starts[-1] :]).removeprefix("error: ").strip()
    return said[-1] if said else "it ended without a word"


def _recipes() -> Path:
    """Inside an installed package, or beside `src` in a checkout."""
    for candidate in (PACKAGE_ROOT / "images", PACKAGE_ROOT.parents[1] / "images"):
        if candidate.is_dir():
            return candidate
    raise ClientError(
        "FAILED_PRECONDITION",
        "The folder with the images' build scripts is not there",
        "Install the package again, or run from a full checkout",
    )
