"""Images on this machine: container images, built by their scripts, and the disks that machines start from.

A script is called as `images/NAME/build --output FOLDER`. It does nothing when the image is there and its
recipe has not changed; its lines are progress; interrupted, it cleans up after itself. It describes in
`image.json` what it has built.

Disks lie in `<home>/images/machine/<name>/`. A disk from elsewhere is checked by qemu-img before and after it
is copied: one that refers to another file could show a tenant any file of this machine.
"""

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import neocloud
from neocloud.cli.machine.disk_architecture import (
    HEAD_SECTORS,
    SECTOR,
    Stretch,
    architectures,
    efi_partition,
)
from neocloud.cli.output import JsonObject
from neocloud.client.errors import ClientError
from neocloud.client.profiles import exists_in_home
from neocloud.core.cleanup import undo_on_error
from neocloud.core.json_values import as_object

PACKAGE_ROOT = Path(neocloud.__file__).resolve().parent
CLEAN_UP_SECONDS = 30.0
MACHINE, LAUNCHER, METRICS = "machine", "launcher", "metrics"
SMOLLM2, MINILM = "smollm2", "all-minilm-l6-v2"
ON_DEMAND = (LAUNCHER, MACHINE, METRICS, SMOLLM2, MINILM)
"""Images for virtual machines, the store of metrics and models, in the order in which they are built;
`neo up` does not wait for them.
"""
ARCHITECTURE = "amd64"
"""The architecture of machines."""
FORMATS = ("qcow2", "raw")
DISK_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")
BOOT_SIGNATURE = b"\x55\xaa"
_CONVERT = "Make it stand for itself with `qemu-img convert`"
_REFERENCES = {"backing-filename": "a backing file", "full-backing-filename": "a backing file"}


def image_names() -> list[str]:
    """Return the names of the images that `neo up` builds."""
    return [name for name in all_image_names() if name not in ON_DEMAND]


def all_image_names() -> list[str]:
    return sorted(script.parent.name for script in _recipes().glob("*/build"))


def built_version(name: str, home: Path) -> str:
    """Return the version that is there; "" when there is none."""
    try:
        return str(json.loads((home / "images" / name / "image.json").read_text())["version"])
    except (OSError, ValueError, KeyError):
        return ""


def built_image(name: str, home: Path) -> tuple[Path, JsonObject]:
    """Return the folder of a container image, and its image.json. Raises ClientError."""
    folder = home / "images" / name
    others = {MACHINE: "disks of machines", METRICS: "a program of the host"}
    others |= dict.fromkeys((SMOLLM2, MINILM), "a model")
    if name in others:
        raise ClientError(
            "INVALID_ARGUMENT",
            f"{name} is {others[name]}, not a container image",
            f"Name one of {', '.join(each for each in all_image_names() if each not in others)}",
        )
    if name not in all_image_names() or not built_version(name, home):
        raise ClientError(
            "NOT_FOUND",
            f"There is no image {name!r} on this machine",
            "`neo image list` lists the images; `neo image build NAME` builds one",
        )
    return folder, json.loads((folder / "image.json").read_text())


def build_images(names: Sequence[str], home: Path, show: Callable[[str], None]) -> None:
    """Build these images side by side unless they are there; `show` gets each line of progress with the
    image's name. Interrupted, all stop and clean up. Raises ClientError."""
    running: list[subprocess.Popen[str]] = []

    def build(name: str) -> None:
        build_image(name, home, lambda line: show(f"{name}: {line}"), running=running)

    def stop() -> None:
        for process in running:
            _stop(process)

    with ThreadPoolExecutor(max(len(names), 1)) as pool, undo_on_error(stop):
        for done in as_completed([pool.submit(build, name) for name in names]):
            done.result()


def build_image(
    name: str,
    home: Path,
    show: Callable[[str], None],
    *,
    force: bool = False,
    only: str | None = None,
    running: list["subprocess.Popen[str]"] | None = None,
) -> None:
    """Build one image unless it is there; `show` gets each line of progress. Raises ClientError.

    `only` names one disk of the image `machine`; the process is added to `running`. The caches of package
    tools are removed with the build: they do not belong in the home folder of the person who builds.
    """
    options = [*(["--force"] if force else []), *(["--only", only] if only else [])]
    folder = (home / "images").resolve()  # perhaps a link to a folder that is not there yet
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".caches-", dir=folder) as caches:
        environment = {**_cache_folders(Path(caches)), **os.environ}
        _run_script(name, folder, options, environment, show, [] if running is None else running)


def _cache_folders(folder: Path) -> dict[str, str]:
    """Return variables that have pip and Rust keep their files in this folder."""
    names = {
        "PIP_CACHE_DIR": "pip",
        "CARGO_HOME": "cargo",
        "RUSTUP_HOME": "rustup",
        "XDG_CACHE_HOME": "cache",
    }
    return {variable: str(folder / name) for variable, name in names.items()}


def _run_script(
    name: str,
    folder: Path,
    options: list[str],
    environment: dict[str, str],
    show: Callable[[str], None],
    running: list["subprocess.Popen[str]"],
) -> None:
    process = subprocess.Popen(
        [sys.executable, str(_recipes() / name / "build"), "--output", str(folder), *options],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        umask=0o022,  # containers' programs of every user read what is built
    )
    said: list[str] = []
    running.append(process)
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
    if process.poll() is not None:
        return
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(CLEAN_UP_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _reason(said: list[str]) -> str:
    """Return the script's output from its error on; else its last line."""
    starts = [number for number, line in enumerate(said) if line.startswith("error: ")]
    if starts:
        return "\n".join(said[starts[-1] :]).removeprefix("error: ").strip()
    return said[-1] if said else "it ended without a word"


def _recipes() -> Path:
    """Return the folder of the build scripts: inside an installed package, or beside `src` in a checkout."""
    for candidate in (PACKAGE_ROOT / "images", PACKAGE_ROOT.parents[1] / "images"):
        if candidate.is_dir():
            return candidate
    raise ClientError(
        "FAILED_PRECONDITION",
        "The folder with the images' build scripts is not there",
        "Install the package again, or run from a full checkout",
    )


def machine_disks(home: Path) -> list[JsonObject]:
    """Return the descriptions of all disks that machines can start from, by name."""
    folder = _disk_folder(home)
    files = sorted(folder.glob("*/image.json")) if exists_in_home(folder) else []
    return [json.loads(file.read_text()) for file in files]


def import_disk(file: Path, home: Path, *, name: str, family: str, title: str) -> JsonObject:
    """Copy a disk into the catalogue and return its description. Raises ClientError."""
    for value in (name, family):
        if not DISK_NAME.fullmatch(value):
            raise ClientError(
                "INVALID_ARGUMENT",
                f"{value!r} is not a name for an image",
                "Use lower case letters, digits, dots and dashes, at most 63",
            )
    found = check_disk(file)
    folder = _disk_folder(home) / name
    folder.mkdir(parents=True, exist_ok=True)
    new = folder / "disk.qcow2.new"
    try:
        # Never by its content: a raw disk whose first bytes look like qcow2 would be read as one.
        _qemu_img("convert", "-f", found["format"], "-O", "qcow2", str(file), str(new), about=file)
        copied = check_disk(new)
        _check_architecture(new, about=file)
        new.replace(folder / "disk.qcow2")
    finally:
        new.unlink(missing_ok=True)
    facts = {
        "name": name,
        "family": family,
        "title": title,
        "version": _digest(folder / "disk.qcow2"),
        "architecture": ARCHITECTURE,
        "disk": "disk.qcow2",
        "minimum_bytes": copied["virtual-size"],
    }
    description = folder / "image.json.new"
    description.write_text(json.dumps(facts, indent=2) + "\n")
    description.replace(folder / "image.json")
    return facts


def check_disk(file: Path) -> JsonObject:
    """Return the output of qemu-img about a disk file. Raises ClientError when it cannot be the disk of a
    machine.
    """
    found = json.loads(_qemu_img("info", "--output=json", str(file), about=file))
    if found["format"] not in FORMATS:
        raise _refused(file, f"it is of the format {found['format']}", "Convert it to qcow2 with qemu-img")
    for key, what in _REFERENCES.items():
        if found.get(key):
            raise _refused(file, f"it has {what}", _CONVERT)
    details = as_object(as_object(found.get("format-specific")).get("data"))
    if "data-file" in details:
        raise _refused(file, "its data lie in another file", _CONVERT)
    if "encrypt" in details:
        raise _refused(file, "it is encrypted", "Decrypt it with `qemu-img convert`")
    if found["format"] == "raw" and not _can_start(file):
        raise _refused(file, "it is neither qcow2 nor a raw disk with a boot sector", "Choose another file")
    return found


def _check_architecture(disk: Path, *, about: Path) -> None:
    """Raise ClientError when the disk, a qcow2 file, starts on processors of another architecture only."""

    def read(part: Stretch, target: Path) -> None:
        words = (
            f"bs={part.block_bytes}",
            f"skip={part.skip_blocks}",
            f"count={part.skip_blocks + part.blocks}",
        )
        _qemu_img("dd", "-f", "qcow2", "-O", "raw", *words, f"if={disk}", f"of={target}", about=about)

    with tempfile.TemporaryDirectory(dir=disk.parent, prefix=".look-") as folder:
        content = Path(folder) / "content"
        read(Stretch(SECTOR, 0, HEAD_SECTORS), content)
        partition = efi_partition(content.read_bytes())
        if partition is None:
            return
        content.unlink()
        read(partition, content)
        found = architectures(content)
    if found and ARCHITECTURE not in found:
        has = " and ".join(sorted(found))
        raise _refused(
            about, f"it starts on {has} and machines here are {ARCHITECTURE}", "Choose another file"
        )


def _can_start(file: Path) -> bool:
    """Anything is a raw disk for qemu-img; one that starts by itself has a boot sector, under GPT too."""
    with file.open("rb") as content:
        return content.read(SECTOR)[-2:] == BOOT_SIGNATURE


def _qemu_img(*arguments: str, about: Path) -> str:
    if shutil.which("qemu-img") is None:
        raise ClientError(
            "FAILED_PRECONDITION", "qemu-img is not installed", "Install it: apt-get install qemu-utils"
        )
    done = subprocess.run(["qemu-img", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise _refused(about, done.stderr.strip() or f"qemu-img {arguments[0]} failed", "Is the file whole?")
    return done.stdout


def _refused(file: Path, why: str, next_step: str) -> ClientError:
    return ClientError("INVALID_ARGUMENT", f"{file} cannot be used: {why}", next_step)


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()[:12]


def _disk_folder(home: Path) -> Path:
    return home / "images" / "machine"
