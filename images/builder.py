"""Shared steps of the image builds: when to build, where, how to bootstrap Debian, how to tell progress.

A build happens in a folder `.building` beside the result and becomes visible by one rename, so an
interrupted build leaves nothing that could be taken for an image; the next one clears it away. Nothing here
knows what is in an image. Standard library only: images are built before anything is installed.
"""

import argparse
import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

# Own mounts and processes: however a command ends, none of either is left behind.
ISOLATED = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
SHOW_SECONDS = 5.0
NOT_IN_IMAGES = ("man", "doc", "locale", "i18n", "info", "lintian")


class BuildError(Exception):
    """The message says what failed and what to do next."""


class Steps:
    """Prints each step as it begins and how long it took."""

    def __init__(self, image: str, total: int) -> None:
        self.image, self.total, self.number = image, total, 0

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        self.number += 1
        begin = time.monotonic()
        label = f"[{self.image} {self.number}/{self.total}] {what}"
        print(f"{label} ...", flush=True)
        yield
        print(f"{label}: {time.monotonic() - begin:.0f} s", flush=True)


def side_by_side(*parts: Callable[[], None]) -> None:
    """Run parts of a step at the same time. Raises the error of one that failed, after all have ended."""
    with ThreadPoolExecutor(len(parts)) as pool:
        for part in [pool.submit(part) for part in parts]:
            part.result()


@contextmanager
def shown_download(image: str, *folders: Path) -> Iterator[None]:
    """Print every few seconds how much has come into these folders, and how fast."""
    ended = threading.Event()

    def show() -> None:
        begin = size = _size(folders)
        since = time.monotonic()
        while not ended.wait(SHOW_SECONDS):
            before, size, past = size, _size(folders), since
            since = time.monotonic()
            if size > before:
                speed = (size - before) / (since - past) / 1e6
                print(f"[{image}] {(size - begin) / 1e6:,.0f} MB fetched, {speed:,.1f} MB/s", flush=True)

    watcher = threading.Thread(target=show, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def _size(folders: Sequence[Path]) -> int:
    """Return the bytes in all files below; files come and go meanwhile."""
    total = 0
    for folder in folders:
        for top, _, names in os.walk(folder):
            for name in names:
                try:
                    total += os.stat(os.path.join(top, name), follow_symlinks=False).st_size
                except OSError:
                    continue
    return total


@dataclass(frozen=True)
class Options:
    """The arguments of a build."""

    image: str
    version: str
    folder: Path
    """The image's own folder below the output folder."""
    force: bool

    def is_built(self) -> bool:
        described = self.folder / "image.json"
        return described.exists() and json.loads(described.read_text())["version"] == self.version


def options(image: str, version: str, description: str) -> Options:
    """Read the command line. `--check` is answered here: exit 0 when built, 1 when not."""
    home = Path(os.environ.get("NEOCLOUD_HOME", "/var/lib/neocloud"))
    parser = argparse.ArgumentParser(prog=f"images/{image}/build", description=description)
    parser.add_argument(
        "--output", type=Path, default=home / "images", metavar="DIR", help="default: %(default)s"
    )
    parser.add_argument("--check", action="store_true", help="only tell whether it is built (0 or 1)")
    parser.add_argument("--force", action="store_true", help="build again what is already built")
    arguments = parser.parse_args()
    chosen = Options(image, version, arguments.output.resolve() / image, arguments.force)
    if arguments.check:
        sys.exit(0 if chosen.is_built() else 1)
    return chosen


def recipe_version(*recipe: Path, said: str = "") -> str:
    """A hash over all files, and whatever else was said, that decide what the image contains."""
    digest = hashlib.sha256(said.encode())
    for root in (Path(__file__), *recipe):
        files = sorted(path for path in root.rglob("*") if path.is_file()) if root.is_dir() else [root]
        for path in files:
            if "__pycache__" not in path.parts:
                digest.update(f"{path.name} {path.stat().st_mode & 0o777:o}\n".encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def describe(folder: Path, **facts: str) -> None:
    """Write image.json last and at once: it is what makes a build count."""
    temporary = folder / "image.json.new"
    temporary.write_text(json.dumps(facts, indent=2) + "\n")
    temporary.replace(folder / "image.json")


@contextmanager
def workspace(options: Options) -> Iterator[Path | None]:
    """A new empty folder to build in, gone afterwards; None when there is nothing to do.

    Waits for another build of the same image to end, and then uses its result.
    """
    options.folder.mkdir(parents=True, exist_ok=True)
    with (options.folder / ".lock").open("w") as lock:
        _wait_for(lock, options.image)
        if options.is_built() and not options.force:
            print(f"[{options.image}] {options.version} is already built")
            yield None
            return
        building = options.folder / ".building"
        shutil.rmtree(building, ignore_errors=True)
        building.mkdir()
        try:
            yield building
        finally:
            while building.exists():  # a process that was killed just now may still write
                shutil.rmtree(building, ignore_errors=True)


def _wait_for(lock: IO[str], image: str) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print(f"[{image}] waiting for another build of this image to end", flush=True)
        fcntl.flock(lock, fcntl.LOCK_EX)


def run(command: Sequence[str | Path], environment: dict[str, str] | None = None) -> None:
    """Run a command quietly; when it fails, its last lines are part of the error."""
    done = subprocess.run(
        ["setpriv", "--pdeathsig", "KILL", *(str(word) for word in command)],  # never outlive the build
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )
    if done.returncode:
        last = "\n".join(done.stdout.strip().splitlines()[-15:])
        raise BuildError(f"{command[0]} failed with exit code {done.returncode}:\n{last}")


def bootstrap(suite: str, packages: Sequence[str], root: Path) -> None:
    """A small Debian with these packages and no documentation in `root`."""
    if shutil.which("mmdebstrap") is None:
        raise BuildError("mmdebstrap is missing. Install it: apt-get install mmdebstrap")
    if os.geteuid() != 0:
        raise BuildError("Building an image needs root. Run it again with sudo.")
    excluded = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in NOT_IN_IMAGES]
    mirror = os.environ.get("NEOCLOUD_DEBIAN_MIRROR")
    command = ["mmdebstrap", "--mode=root", "--variant=minbase", "--format=directory"]
    command += ['--aptopt=APT::Install-Recommends "false"', "--dpkgopt=force-unsafe-io", *excluded]
    command += [f"--include={','.join(packages)}", suite, str(root), *([mirror] if mirror else [])]
    run([*ISOLATED, *command])


def finish(root: Path, script: Path) -> None:
    """Run the image's own `finish` script inside it."""
    shutil.copy(script, root / "root/finish")
    inside = 'mount -t proc proc "$0/proc" && exec chroot "$0" /root/finish'
    environment = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/root",
        "LANG": "C.UTF-8",
        "DEBIAN_FRONTEND": "noninteractive",
    }
    run([*ISOLATED, "sh", "-c", inside, root], environment)
    (root / "root/finish").unlink()


def main(build: Callable[[], None]) -> None:
    """Run a build as a command: Ctrl-C and a polite kill clean up, errors are one paragraph."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        build()
    except BuildError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
