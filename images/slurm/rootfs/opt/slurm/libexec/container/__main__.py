"""Prepare, save and remove the containers of a job: container start|save|remove JOB STEP NODE [OPTIONS].

The job plugin runs it as the job's user, in the shared root, with no more rights than a job has. `start`
prints what the container is made of, for the plugin and container-roots (inside/container.h); messages go to
standard error, one a line. Containers lie in the job's own /tmp, below neocloud-containers-UID.
"""

import argparse
import json
import os
import pwd
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from accounts import add_user
from files import ContainerError, locked, private_folder, remove, say, until_end
from image_store import Image, fetch
from names import find

DRIVER = "/run/neocloud/driver"
SPOOL = "/var/spool/slurmd"
SYSTEM = {
    "bin",
    "boot",
    "dev",
    "etc",
    "lib",
    "lib32",
    "lib64",
    "libx32",
    "opt",
    "proc",
    "run",
    "sbin",
    "sys",
    "tmp",
    "usr",
    "var",
}
FLAGS = {"ro", "rw", "bind", "rbind", "private", "rprivate", "slave", "rslave", "nosuid", "nodev", "noexec"}
MOST_MOUNTS = 1000
MOST_PRINTED = 256 << 10
MOST_SAID = 1 << 16

Mount = tuple[str, str, str, str]
"""Kind, source, path in the container, flags: the words of container-roots."""


def options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="container", allow_abbrev=False)
    parser.add_argument("verb", choices=("start", "save", "remove"))
    for name in ("job", "step", "node"):
        parser.add_argument(name)
    for name in ("image", "mounts", "workdir", "name", "save", "env"):
        parser.add_argument(f"--container-{name}", default="")
    for name in ("mount-home", "remap-root", "writable", "readonly"):
        parser.add_argument(f"--container-{name}", action="store_true")
    for name in ("mount-home", "remap-root"):
        parser.add_argument(f"--no-container-{name}", action="store_true")
    parser.add_argument("--descriptor", type=int, default=-1)
    return parser.parse_args(arguments)


def check(chosen: argparse.Namespace) -> None:
    for yes, no in (("mount_home", "no_container_mount_home"), ("remap_root", "no_container_remap_root")):
        if getattr(chosen, f"container_{yes}") and getattr(chosen, no):
            raise ContainerError(f"--{no.replace('_', '-')} and its opposite cannot both be given")
    if chosen.container_writable and chosen.container_readonly:
        raise ContainerError("--container-writable and --container-readonly cannot both be given")
    if not chosen.container_image and not chosen.container_name:
        raise ContainerError("options of containers need --container-image")
    if chosen.container_workdir and not chosen.container_workdir.startswith("/"):
        raise ContainerError("--container-workdir: write the whole path, from / on")


def name_of(chosen: argparse.Namespace) -> tuple[str, str]:
    """Return the name of the container and what may be done: auto, create or exec."""
    name, _, flag = chosen.container_name.partition(":")
    if chosen.container_name and not re.fullmatch(r"[\w][\w.-]{0,63}", name, re.ASCII):
        raise ContainerError("--container-name: use at most 64 letters, digits, dots and hyphens")
    if flag not in ("", "auto", "create", "exec", "no_exec"):
        raise ContainerError("--container-name: after the colon comes auto, create or exec")
    return name, flag


def job_folder(chosen: argparse.Namespace) -> Path:
    return Path(f"/tmp/neocloud-containers-{os.getuid()}") / chosen.job


def folder_of(chosen: argparse.Namespace) -> Path:
    name, _ = name_of(chosen)
    return job_folder(chosen) / (f"named.{name}" if name else f"step.{chosen.step}")


def start(chosen: argparse.Namespace) -> None:
    check(chosen)
    name, flag = name_of(chosen)
    private_folder(job_folder(chosen).parent)
    folder = private_folder(job_folder(chosen)) / folder_of(chosen).name
    with locked(folder.with_suffix(folder.suffix + ".lock"), "makes this container"):
        described = folder / "container.json"
        exists = bool(name) and described.exists()
        if exists and flag == "create":
            raise ContainerError(f"there is a container {name} already; leave :create out to use it")
        if not exists and (flag == "exec" or not chosen.container_image):
            raise ContainerError(
                f"there is no container {name} of this job on this node; add --container-image"
            )
        if exists:
            image = Image(**json.loads(described.read_text()))
        else:
            image = fetch(find(chosen.container_image))
            make(folder, image)
    mounts = [*system_mounts(folder), *own_mounts(chosen, image), *asked_mounts(chosen.container_mounts)]
    kept = set(chosen.container_env.split(","))
    variables = {key: value for key, value in image.variables.items() if key not in kept}
    variables |= driver_variables(variables)
    directory = chosen.container_workdir or first_directory(image, mounts)
    mode = "ro" if chosen.container_readonly else "rw"
    words = [str(len(variables)), *(f"{key}={value}" for key, value in variables.items()), directory]
    words += [mode, image.folder, str(folder), *(word for mount in mounts for word in mount)]
    printed = b"".join(os.fsencode(word) + b"\0" for word in words)
    if len(printed) > MOST_PRINTED or len(mounts) > MOST_MOUNTS:
        raise ContainerError(
            f"{len(mounts)} mounts and the image's variables have {len(printed) >> 10} KiB; a container "
            f"takes {MOST_MOUNTS} mounts and {MOST_PRINTED >> 10} KiB"
        )
    sys.stdout.buffer.write(printed)


def make(folder: Path, image: Image) -> None:
    """Make the container's own folders: its changes, and the place where it is mounted."""
    remove(folder)
    folder.mkdir(0o700)
    for name in ("upper", "work", "root"):
        (folder / name).mkdir(0o755)
    add_user(Path(image.folder), folder / "upper")
    (folder / "container.json").write_text(json.dumps(asdict(image)))


def system_mounts(folder: Path) -> list[Mount]:
    """Return what every container has of its node."""
    mounts: list[Mount] = [("bind", path, path, "") for path in ("/proc", "/sys", "/dev", "/tmp")]
    mounts.append(("try", SPOOL, SPOOL, "ro"))  # scripts of sbatch, sockets of MPI
    mounts += [("try", path, path, "ro") for path in ("/etc/hosts", "/etc/resolv.conf", "/etc/hostname")]
    return mounts


def own_mounts(chosen: argparse.Namespace, image: Image) -> list[Mount]:
    """Return the GPU driver, the user's home, and the folder that the job was started in."""
    mounts: list[Mount] = [("bind", DRIVER, DRIVER, "ro")] if Path(DRIVER).is_dir() else []
    home = pwd.getpwuid(os.getuid()).pw_dir
    directory = os.getcwd()
    if not chosen.no_container_mount_home and Path(home).is_dir() and home != "/":
        mounts.append(("bind", home, home, ""))
    if is_of_users(directory) and not f"{directory}/".startswith(f"{home}/"):
        mounts.append(("bind", directory, directory, ""))
    return mounts


def is_of_users(directory: str) -> bool:
    """Return whether users' files lie there: not the system's, which the image has of its own."""
    return directory != "/" and directory.split("/")[1] not in SYSTEM


def asked_mounts(text: str) -> list[Mount]:
    """Return the mounts of --container-mounts."""
    mounts: list[Mount] = []
    for entry in filter(None, text.split(",")):
        source, _, rest = entry.partition(":")
        target, _, flags = rest.partition(":")
        target = target or source
        unknown = {flag for flag in flags.split("+") if flag and not flag.startswith("x-")} - FLAGS
        if unknown:
            raise ContainerError(
                f"--container-mounts: {min(unknown)} is no flag; known are {', '.join(sorted(FLAGS))}"
            )
        if not target.startswith("/") or not target.strip("/."):
            raise ContainerError(f"--container-mounts: {entry}: write SRC:DST[:FLAGS] with whole paths")
        if source in ("tmpfs", "umount"):
            mounts.append((source, source, target, flags))
            continue
        if not source.startswith(("/", ".")):
            raise ContainerError(f"--container-mounts: {source} is not a path; begin with / or ./")
        if not os.path.exists(source):
            raise ContainerError(f"--container-mounts: there is no {source}")
        mounts.append(("bind", os.path.abspath(source), target, flags))
    return mounts


def driver_variables(variables: dict[str, str]) -> dict[str, str]:
    if not Path(DRIVER).is_dir():
        return {}
    paths = variables.get("PATH") or os.environ.get("PATH") or "/usr/bin:/bin"
    libraries = variables.get("LD_LIBRARY_PATH", "")
    return {
        "PATH": f"{paths}:{DRIVER}/bin",
        "LD_LIBRARY_PATH": f"{DRIVER}/lib:{libraries}" if libraries else f"{DRIVER}/lib",
    }


def first_directory(image: Image, mounts: Sequence[Mount]) -> str:
    """Return where tasks start: where the image says, or else where the job was started, if that is shown."""
    directory = os.getcwd()
    shown = [target for kind, source, target, _ in mounts if kind == "bind" and source == target]
    is_shown = any(f"{directory}/".startswith(f"{target}/") for target in shown)
    return directory if image.directory == "/" and is_of_users(directory) and is_shown else image.directory


def save(chosen: argparse.Namespace) -> None:
    """Write the container's file system, without what is mounted in it, to a squashfs file."""
    if chosen.node != "0":
        return  # the first node of the step does
    target = Path(chosen.container_save).absolute()
    image = json.loads((folder_of(chosen) / "container.json").read_text())
    temporary = target.with_name(f".{target.name}.{chosen.job}.{chosen.step}.saving")
    notes = folder_of(chosen) / ".container.json"
    notes.write_text(json.dumps({"variables": image["variables"], "directory": image["directory"]}))
    command = ["mksquashfs", ".", temporary, "-noappend", "-no-progress", "-quiet", "-comp", "zstd"]
    command += ["-Xcompression-level", "3", "-p", f".container.json f 644 0 0 cat {notes}"]
    command += ["-e", ".container.json"]
    os.fchdir(os.open(f"/proc/self/fd/{chosen.descriptor}", os.O_RDONLY | os.O_DIRECTORY))
    said = folder_of(chosen) / "said"
    with said.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        try:
            for _ in until_end(process):
                pass
        finally:
            process.kill()
            if process.wait():
                temporary.unlink(missing_ok=True)
    if process.returncode:
        last = said.read_bytes()[-MOST_SAID:].decode(errors="replace").strip().splitlines()[-1:]
        raise ContainerError(f"{target} was not written: {last[0] if last else 'no reason was given'}")
    temporary.replace(target)
    say(f"saved {target} ({target.stat().st_size / (1 << 20):.1f} MiB)")


def main(arguments: Sequence[str]) -> int:
    chosen = options(arguments)
    os.umask(0o022)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # of the job plugin; what was begun is removed
    try:
        if chosen.verb == "start":
            start(chosen)
        elif chosen.verb == "save":
            save(chosen)
        else:
            remove(folder_of(chosen))
    except ContainerError as error:
        say(f"error: {error}")
        return 1
    except OSError as error:
        say(f"error: {error.filename or 'container'}: {error.strerror}")
        return 1
    return 0


sys.exit(main(sys.argv[1:]))
