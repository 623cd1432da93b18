"""Names of images, as enroot and Pyxis have them, and the passwords of registries."""

import base64
import contextlib
import hashlib
import json
import os
import re
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path

from files import ContainerError, read_small, show_life

HUB = "docker.io"
NAME = re.compile(
    r"[a-z0-9][A-Za-z0-9._/-]*(:[0-9]+(?=/)[A-Za-z0-9._/-]*)?(:[\w][\w.-]{0,127})?(@sha256:[0-9a-f]{64})?"
)
TAG = re.compile(r":[\w][\w.-]*$", re.ASCII)
USER = re.compile(r"[^\s:/#]{1,256}")
MOST_CREDENTIALS = 1 << 20
MOST_INDEX = 16 << 20
LONGEST_NAME = 1 << 16
FILES = (".sqsh", ".squashfs", ".tar")


@dataclass(frozen=True)
class Source:
    """An image where it is now: `where` as skopeo writes it, or the path of a squashfs file."""

    name: str
    where: str
    key: str = ""
    """Key of a file that changes when the file does."""
    sign_in: str = ""
    """The file of passwords for skopeo, if it is not the user's own."""

    @property
    def is_squashfs(self) -> bool:
        return self.where.startswith("/")


def find(text: str) -> Source:
    """Return what `[docker://][USER@][REGISTRY#]IMAGE[:TAG]` or a path means. Raises ContainerError."""
    if text.startswith(("/", "./", "../")):
        return _file(Path(text))
    name, sign, digest = text.removeprefix("docker://").partition("@sha256:")
    user, has_user, name = name.rpartition("@")
    registry, has_registry, image = name.rpartition("#")
    name = f"{registry}/{image}" if has_registry else image
    if not NAME.fullmatch(name + sign + digest) or (has_user and not USER.fullmatch(user)):
        raise ContainerError(
            f"{text} is not the name of an image; write [docker://][USER@][REGISTRY#]IMAGE[:TAG] or a path"
        )
    if image.endswith(FILES) and not has_registry and "://" not in text:
        raise ContainerError(f"{text}: write ./{text} if it is a file, docker://{text} if it is not")
    host = registry or _host(image)
    if digest:  # it says which image, whatever the tag beside it has come to mean
        name = TAG.sub("", name)
    return Source(text, f"docker://{name}{sign}{digest}", sign_in=_sign_in(user, host))


def _host(image: str) -> str:
    """Return the registry of a name without "#", as docker reads it."""
    first, has_more, _ = image.partition("/")
    return first if has_more and (set(first) & set(".:") or first == "localhost") else HUB


def _sign_in(user: str, host: str) -> str:
    """Return skopeo's words for the password that enroot's credentials have for a registry."""
    file = _credentials_file()
    found = [(name, password) for machine, name, password in _credentials(file) if machine in _machines(host)]
    chosen = next((entry for entry in found if user in ("", entry[0])), None)
    if user and chosen is None:
        raise ContainerError(
            f'there is no password of {user}: write "machine {_machines(host)[0]} login {user} password ..." '
            f'to {file}, or sign in with "skopeo login" and leave {user}@ out'
        )
    if chosen is None:
        return ""
    secret = base64.b64encode(":".join(chosen).encode()).decode()
    return json.dumps({"auths": {host: {"auth": secret}}})


def _machines(host: str) -> tuple[str, ...]:
    """Return the names that enroot's users write for a registry: Docker Hub has one more."""
    return ("auth.docker.io", HUB) if host == HUB else (host,)


def _credentials_file() -> Path:
    configuration = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "enroot"
    return Path(os.environ.get("ENROOT_CONFIG_PATH") or configuration) / ".credentials"


def _credentials(file: Path) -> list[tuple[str, str, str]]:
    """Return machine, login and password of each line. Nothing is executed, unlike in enroot."""
    lines: list[str] = []
    with contextlib.suppress(OSError, UnicodeError), file.open(encoding="utf-8") as opened:
        lines = opened.read(MOST_CREDENTIALS).splitlines()
    words = [line.split() for line in lines if not line.lstrip().startswith("#")]
    return [
        (entry[1], entry[3], entry[5])
        for entry in words
        if len(entry) == 6 and entry[::2] == ["machine", "login", "password"]
    ]


def _file(path: Path) -> Source:
    try:
        path = path.resolve(strict=True)
        about = path.stat()
        if path.is_dir():
            index = read_small(path / "index.json", MOST_INDEX)
            return Source(str(path), f"oci:{path}", hashlib.sha256(index).hexdigest())
        if not stat.S_ISREG(about.st_mode):  # reading a pipe would wait for its other end
            raise ContainerError(f"{path} is neither a file nor a folder")
        with path.open("rb") as file:
            head = file.read(512)
    except OSError as error:
        raise ContainerError(f"{path}: {error.strerror}") from error
    key = hashlib.sha256(f"{path} {about.st_ino} {about.st_size} {about.st_mtime_ns}".encode()).hexdigest()
    if head.startswith(b"hsqs"):
        return Source(str(path), str(path), key)
    if ":" in str(path):
        raise ContainerError(f"{path}: an archive must not have a colon in its path")
    return Source(str(path), f"{'oci' if _is_oci_archive(path) else 'docker'}-archive:{path}", key)


def _is_oci_archive(path: Path) -> bool:
    command = ["tar", "--list", "--file", path]
    is_oci = False
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as listing:
        assert listing.stdout is not None
        while name := listing.stdout.readline(LONGEST_NAME):
            show_life()
            is_oci = is_oci or name.strip() in (b"oci-layout", b"./oci-layout")
    if listing.returncode:
        raise ContainerError(f"{path} is neither a squashfs file nor an archive of docker or OCI")
    return is_oci
