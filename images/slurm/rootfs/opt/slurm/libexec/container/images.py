"""Images: what a name means, and how one becomes a folder that containers share.

An image is unpacked once for a user and a cluster, below ~/.cache/neocloud/containers in the shared root,
under the digest of its manifest. skopeo fetches, umoci and unsquashfs unpack, all with the rights of the
job's user: owners become that user, device files and set-uid programs have no effect in a container.
"""

import contextlib
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from files import ContainerError, locked, private_folder, remove, say

ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
NAME = re.compile(
    r"[a-z0-9][A-Za-z0-9._/-]*(:[0-9]+(?=/)[A-Za-z0-9._/-]*)?(:[\w][\w.-]{0,127})?(@sha256:[0-9a-f]{64})?"
)
DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
ANSWER_SECONDS = 60.0
MOST_METADATA = 16 << 20
LEAST_FREE = 1 << 30
"""Bytes of a disk that stay free, or a tenth of a smaller one."""


@dataclass(frozen=True)
class Image:
    """An unpacked image."""

    folder: str
    variables: dict[str, str]
    directory: str


@dataclass(frozen=True)
class Source:
    """An image where it is now: `where` as skopeo writes it, or the path of a squashfs file."""

    name: str
    where: str
    key: str = ""
    """Of a file: what changes when the file does."""

    @property
    def is_squashfs(self) -> bool:
        return self.where.startswith("/")


def find(text: str) -> Source:
    """Return what the user's name for an image means. Raises ContainerError."""
    if text.startswith(("/", "./", "../")):
        return _file(Path(text))
    name = text.removeprefix("docker://")
    registry, has_registry, rest = name.partition("#")
    if "@" in (registry if has_registry else name.partition("@sha256:")[0]):
        raise ContainerError(f'{text} names a user; sign in with "skopeo login" and leave the user out')
    name = f"{registry}/{rest}" if has_registry else name
    if not NAME.fullmatch(name):
        raise ContainerError(
            f"{text} is not the name of an image; write [docker://][REGISTRY#]IMAGE[:TAG] or a path"
        )
    return Source(text, f"docker://{name}")


def _file(path: Path) -> Source:
    try:
        path = path.resolve(strict=True)
        about = path.stat()
        if path.is_dir():
            index = (path / "index.json").read_bytes()
            return Source(str(path), f"oci:{path}", hashlib.sha256(index).hexdigest())
        with path.open("rb") as file:
            head = file.read(512)
    except OSError as error:
        raise ContainerError(f"{path}: {error.strerror}") from error
    key = hashlib.sha256(f"{path} {about.st_ino} {about.st_size} {about.st_mtime_ns}".encode()).hexdigest()
    if head.startswith(b"hsqs"):
        return Source(str(path), str(path), key)
    if ":" in str(path):
        raise ContainerError(f"{path}: an archive must not have a colon in its path")
    kind = "oci-archive" if _names_of_archive(path) & {"oci-layout", "./oci-layout"} else "docker-archive"
    return Source(str(path), f"{kind}:{path}", key)


def _names_of_archive(path: Path) -> set[str]:
    listed = subprocess.run(["tar", "--list", "--file", path], capture_output=True, text=True, check=False)
    if listed.returncode:
        raise ContainerError(f"{path} is neither a squashfs file nor an archive of docker or OCI")
    return set(listed.stdout.splitlines())


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
            with _work_folder(store) as work:
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
    return Image(str(folder / "rootfs"), known["variables"], known["directory"])


def _store() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    try:
        (cache / "neocloud").mkdir(parents=True, exist_ok=True)
        return private_folder(cache / "neocloud" / "containers")
    except OSError as error:
        raise ContainerError(f"{cache}: {error.strerror}; images are kept there") from error


@contextlib.contextmanager
def _work_folder(store: Path) -> Iterator[Path]:
    work = Path(tempfile.mkdtemp(dir=store, prefix="importing-"))
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
    sizes = [entry["size"] for entry in layers if isinstance(entry.get("size"), int)]
    _check_space(source, sum(sizes), store)
    configuration = _object(_skopeo(source, "inspect", "--raw", "--config", where), source)
    if (
        configuration.get("architecture", ARCHITECTURE) != ARCHITECTURE
        or configuration.get("os", "linux") != "linux"
    ):
        raise _other_architecture(source, f"{configuration.get('os')} on {configuration.get('architecture')}")
    copy = ["copy", "--quiet", "--insecure-policy", where, f"oci:{work}/oci:image"]
    _watched(source, ["skopeo", *copy], work, store, must_progress=True)
    unpack = ["umoci", "unpack", "--rootless", "--image", f"{work}/oci:image", f"{work}/bundle"]
    _watched(source, unpack, work, store)
    (work / "bundle" / "rootfs").rename(work / "rootfs")
    for name in ("bundle", "oci", "temporary"):
        remove(work / name)
    settings = configuration.get("config") or {}
    entries = [str(entry).partition("=") for entry in settings.get("Env") or []]
    variables = {name: value for name, sign, value in entries if sign and name and "\0" not in name + value}
    directory = str(settings.get("WorkingDir") or "/").replace("\0", "")
    return Image("", variables, directory if directory.startswith("/") else "/")


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
) -> None:
    """Run a command that writes below `work`; end it when the disk is nearly full or a download stalls."""
    temporary = work / "temporary"
    temporary.mkdir(exist_ok=True)
    errors = work / "errors"
    with errors.open("wb") as file:
        process = _started(command, temporary, stdout=subprocess.DEVNULL, stderr=file)
        try:
            written, since, deadline = -1, time.monotonic(), _patience()
            while process.poll() is None:
                time.sleep(0.1 if time.monotonic() < since + 2 else 0.5)
                if _free(store) < 0:
                    raise ContainerError(
                        f"{source.name} is larger than the space for images; remove files and try again"
                    )
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
        raise _refusal(source, errors.read_bytes()[-8192:])


def _size(folder: Path) -> int:
    total = 0
    for root, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(root, name)).st_size
    return total


def _skopeo(source: Source, *arguments: str) -> bytes:
    """Return what skopeo prints of an image's metadata."""
    process = _started(["skopeo", *arguments], None, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        printed, errors = process.communicate(timeout=_patience())
    except subprocess.TimeoutExpired as error:
        raise ContainerError(
            f"{source.name}: its registry did not answer within {_patience():.0f} s"
        ) from error
    finally:
        process.kill()
        process.wait()
    if process.returncode:
        raise _refusal(source, errors)
    return printed


def _started(command: Sequence[str], temporary: Path | None, **streams: Any) -> subprocess.Popen[bytes]:
    more = {"TMPDIR": str(temporary)} if temporary else {}
    try:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, env={**os.environ, **more}, **streams)
    except FileNotFoundError as error:
        packages = "skopeo umoci squashfs-tools"
        raise ContainerError(
            f'{command[0]} is missing in the shared root; "apt-get install {packages}" adds it'
        ) from error


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
