"""Images: how one becomes a folder that containers share.

An image is unpacked once for a user and a cluster, below ~/.cache/neocloud/containers in the shared root,
under the digest of its manifest. skopeo fetches, umoci and unsquashfs unpack, all with the rights of the
job's user: owners become that user, device files and set-uid programs have no effect in a container.
"""

import contextlib
import errno
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

from files import ContainerError, locked, private_folder, remove, say, show_life, until_end
from layers import oci_layout
from names import Source

ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
ANSWER_SECONDS = 60.0
MOST_METADATA = 16 << 20
DOCKER_ZSTD = "application/vnd.docker.image.rootfs.diff.tar.zstd"
MOST_VARIABLES = 32 << 10
LEAST_FREE = 1 << 30
"""Bytes of a disk that stay free, or a tenth of a smaller one."""


@dataclass(frozen=True)
class Image:
    """An unpacked image."""

    folder: str
    variables: dict[str, str]
    directory: str


def fetch(source: Source) -> Image:
    """Return the unpacked image, imported before if it is missing. Raises ContainerError."""
    store = _store()
    # What a registry calls by this name may have changed, so it is asked each time; a file tells by itself.
    where, key = (source.where, source.key) if source.key else _manifest(source)
    folder = store / key
    with locked(store / f"{key}.lock", f"imports {source.name}"):
        described = folder / "image.json"
        if not described.exists():
            begin = time.monotonic()
            say(f"importing {source.name}")
            with _work_folder(store, key) as work:
                image = (
                    _squashfs(source, work, store)
                    if source.is_squashfs
                    else _layers(source, where, work, store)
                )
                (work / "image.json").write_text(json.dumps(asdict(image)))
                remove(folder)
                work.rename(folder)
            say(f"imported {source.name} in {time.monotonic() - begin:.1f} s")
        known = json.loads(described.read_text())
    return replace(_image(source, known["variables"], known["directory"]), folder=str(folder / "rootfs"))


def _store() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    try:
        (cache / "neocloud").mkdir(parents=True, exist_ok=True)
        return private_folder(cache / "neocloud" / "containers")
    except OSError as error:
        raise ContainerError(f"{cache}: {error.strerror}; images are kept there") from error


@contextlib.contextmanager
def _work_folder(store: Path, key: str) -> Iterator[Path]:
    """Provide a folder of an import, in which no other works while the image is locked."""
    work = store / f"importing-{key}"
    remove(work)  # of an import that was killed
    work.mkdir(0o700)
    try:
        yield work
    finally:
        remove(work)


def _manifest(source: Source) -> tuple[str, str]:
    """Return what to copy and its digest: of an image for several architectures, that of this node."""
    raw = _skopeo(source, "inspect", "--raw", source.where)
    manifest = _object(raw, source)
    repository = re.sub(r"(:[\w.-]+)?(@sha256:.*)?$", "", source.where.removeprefix("docker://"))
    if isinstance(listed := manifest.get("manifests"), list):
        platforms = [entry.get("platform") or {} for entry in listed if isinstance(entry, dict)]
        found = [
            str(entry.get("digest"))
            for entry, of in zip(listed, platforms, strict=False)
            if (of.get("os"), of.get("architecture")) == ("linux", ARCHITECTURE)
        ]
        if not found or not DIGEST.fullmatch(found[0]):
            others = ", ".join(sorted({str(of.get("architecture")) for of in platforms})) or "none"
            raise _other_architecture(source, others)
        digest = found[0].partition(":")[2]
    else:
        digest = hashlib.sha256(raw).hexdigest()
    return f"docker://{repository}@sha256:{digest}", digest


def _layers(source: Source, where: str, work: Path, store: Path) -> Image:
    manifest = _object(_skopeo(source, "inspect", "--raw", where), source)
    layers = [entry for entry in manifest.get("layers") or [] if isinstance(entry, dict)]
    if any(str(entry.get("mediaType")) == DOCKER_ZSTD for entry in layers):
        raise ContainerError(
            f"{source.name} has layers that are compressed with zstd under Docker's type; skopeo cannot "
            "read them; build it with --output type=image,push=true,oci-mediatypes=true,compression=zstd"
        )
    sizes = [entry["size"] for entry in layers if isinstance(entry.get("size"), int)]
    _check_space(source, sum(sizes), store)
    configuration = _object(_skopeo(source, "inspect", "--raw", "--config", where), source)
    if (
        configuration.get("architecture", ARCHITECTURE) != ARCHITECTURE
        or configuration.get("os", "linux") != "linux"
    ):
        raise _other_architecture(source, f"{configuration.get('os')} on {configuration.get('architecture')}")
    _copy(source, where, layers, work, store)
    unpack = ["umoci", "unpack", "--rootless", "--image", f"{work}/oci:image", f"{work}/bundle"]
    _watched(source, unpack, work, store)
    (work / "bundle" / "rootfs").rename(work / "rootfs")
    for name in ("bundle", "oci", "temporary"):
        remove(work / name)
    settings = configuration.get("config") or {}
    entries = [str(entry).partition("=") for entry in settings.get("Env") or []]
    variables = {name: value for name, sign, value in entries if sign and name and "\0" not in name + value}
    directory = str(settings.get("WorkingDir") or "/").replace("\0", "")
    return _image(source, variables, directory)


def _copy(source: Source, where: str, layers: Sequence[dict[str, Any]], work: Path, store: Path) -> None:
    """Copy an image to the OCI layout `oci` of the work folder, as umoci reads it: it knows no zstd."""
    is_zstd = any(str(layer.get("mediaType", "")).endswith("zstd") for layer in layers)
    target = f"dir:{work}/copied" if is_zstd else f"oci:{work}/oci:image"
    copy = ["skopeo", "copy", "--quiet", "--insecure-policy", where, target]
    _watched(source, copy, work, store, must_progress=True)
    if not is_zstd:
        return
    try:
        for command, decompressed in oci_layout(work / "copied", work / "oci"):
            with decompressed.open("wb") as output:
                _watched(source, command, work, store, output=output)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ContainerError(f"{source.name}: its description cannot be read") from error
    remove(work / "copied")


def _squashfs(source: Source, work: Path, store: Path) -> Image:
    _check_space(source, Path(source.where).stat().st_size, store)
    command = ["unsquashfs", "-no-progress", "-no-xattrs", "-dest", f"{work}/rootfs", source.where]
    # 2: something of it could not be made, such as a device file
    _watched(source, command, work, store, good=(0, 2))
    kept = work / "rootfs" / ".container.json"  # of --container-save
    variables: dict[str, str] = {}
    directory = "/"
    with contextlib.suppress(OSError, ValueError, AttributeError):
        descriptor = os.open(kept, os.O_RDONLY | os.O_NOFOLLOW)
        with open(descriptor, encoding="utf-8") as file:
            saved = json.loads(file.read(MOST_METADATA))
        variables = {str(name): str(value) for name, value in saved["variables"].items() if "\0" not in value}
        directory = str(saved["directory"])
    return _image(source, variables, directory)


def _image(source: Source, variables: dict[str, str], directory: str) -> Image:
    size = sum(len(os.fsencode(name)) + len(os.fsencode(value)) + 2 for name, value in variables.items())
    if size > MOST_VARIABLES:
        raise ContainerError(
            f"{source.name} sets {size >> 10} KiB of variables; a container takes {MOST_VARIABLES >> 10} KiB"
        )
    return Image("", variables, directory if directory.startswith("/") else "/")


def _check_space(source: Source, size: int, store: Path) -> None:
    free = _free(store)
    if size > free:
        raise ContainerError(
            f"{source.name} has {_gib(size)}, and only {_gib(max(free, 0))} are free for images"
        )


def _free(store: Path) -> int:
    usage = shutil.disk_usage(store)
    return usage.free - min(LEAST_FREE, usage.total // 10)


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"


def _watched(
    source: Source,
    command: Sequence[str],
    work: Path,
    store: Path,
    *,
    must_progress: bool = False,
    good: Sequence[int] = (0,),
    output: IO[bytes] | int = subprocess.DEVNULL,
) -> None:
    """Run a command that writes below `work`; end it when the disk is nearly full or a download stalls."""
    temporary = work / "temporary"
    temporary.mkdir(exist_ok=True)
    errors = work / "errors"
    with errors.open("wb") as file:
        process = _started(command, source, temporary, stdout=output, stderr=file)
        try:
            written, since, deadline = -1, time.monotonic(), _patience()
            for _ in until_end(process):
                if _free(store) < 0:
                    raise _too_large(source)
                if must_progress and (now := _size(work)) != written:
                    written, since = now, time.monotonic()
                elif must_progress and time.monotonic() > since + deadline:
                    raise ContainerError(
                        f"{source.name}: nothing arrived from its registry for {deadline:.0f} s"
                    )
        finally:
            process.kill()
            process.wait()
    if process.returncode not in good:
        said = errors.read_bytes()[-8192:]
        # It filled the disk between two looks, and may have removed its files since.
        if _free(store) < 0 or os.strerror(errno.ENOSPC).lower() in said.decode(errors="replace").lower():
            raise _too_large(source)
        raise _refusal(source, said)


def _too_large(source: Source) -> ContainerError:
    return ContainerError(f"{source.name} is larger than the space for images; remove files and try again")


def _size(folder: Path) -> int:
    total = 0
    for root, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(root, name)).st_size
    return total


def _skopeo(source: Source, *arguments: str) -> bytes:
    """Return what skopeo prints of an image's metadata."""
    process = _started(["skopeo", *arguments], source, None, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + _patience()
    try:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                printed, errors = process.communicate(timeout=1)
                break
            show_life()
            if time.monotonic() > deadline:
                raise ContainerError(f"{source.name}: its registry did not answer within {_patience():.0f} s")
    finally:
        process.kill()
        process.wait()
    if process.returncode:
        raise _refusal(source, errors)
    return printed


def _started(
    command: Sequence[str],
    source: Source,
    temporary: Path | None,
    *,
    stdout: IO[bytes] | int,
    stderr: IO[bytes] | int,
) -> subprocess.Popen[bytes]:
    variables = {**os.environ, **({"TMPDIR": str(temporary)} if temporary else {})}
    passwords = -1
    try:
        if source.sign_in:  # in memory only, and not among the words of a command, which others can read
            passwords = os.memfd_create("passwords")
            os.write(passwords, source.sign_in.encode())
            variables["REGISTRY_AUTH_FILE"] = f"/proc/self/fd/{passwords}"
        kept = [passwords] if source.sign_in else []
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env=variables,
            pass_fds=kept,
        )
    except FileNotFoundError as error:
        packages = "skopeo umoci squashfs-tools"
        raise ContainerError(
            f'{command[0]} is missing in the shared root; "apt-get install {packages}" adds it'
        ) from error
    finally:
        if passwords >= 0:
            os.close(passwords)


def _patience() -> float:
    with contextlib.suppress(ValueError):
        return float(os.environ.get("NEOCLOUD_CONTAINER_TIMEOUT", ""))
    return ANSWER_SECONDS


def _object(raw: bytes, source: Source) -> dict[str, Any]:
    try:
        value = json.loads(raw) if len(raw) <= MOST_METADATA else None
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ContainerError(f"{source.name}: its description cannot be read")
    return value


def _other_architecture(source: Source, others: str) -> ContainerError:
    return ContainerError(
        f"{source.name} is for another architecture ({others}); this node is linux on {ARCHITECTURE}"
    )


def _refusal(source: Source, errors: bytes) -> ContainerError:
    text = errors.decode(errors="replace").strip()
    if re.search(
        r"manifest unknown|name unknown|not found|repository name not known|does not exist", text, re.I
    ):
        return ContainerError(f"there is no image {source.name}")
    if re.search(r"unauthorized|denied|authentication required", text, re.I):
        return ContainerError(
            f'{source.name}: the registry refuses; sign in with "skopeo login", or check the name'
        )
    last = text.splitlines()[-1] if text else "no reason was given"
    found = re.search(r'msg="(.*?)"\s*$', last)
    return ContainerError(f"{source.name} cannot be imported: {found[1] if found else last}"[:600])
