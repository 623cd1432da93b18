"""The user's ssh: keys to authorize and to sign in with, and what the program can reach."""

import socket
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from neocloud.client.errors import ClientError

SSH_PORT = 22
LOGIN_SECONDS = 30
CONNECT_SECONDS = 5.0
DEFAULT_NAMES = ("id_ed25519.pub", "id_ecdsa.pub", "id_rsa.pub")


def read_public_keys(files: Sequence[Path]) -> list[str]:
    """Return the keys in these files, one per line. The cloud validates them."""
    keys: list[str] = []
    for file in files:
        try:
            text = file.read_text()
        except OSError as error:
            raise ClientError(
                "INVALID_ARGUMENT",
                f"The key file {file} cannot be read: {error.strerror}",
                f"Create a key with `ssh-keygen -t ed25519 -f {file.with_suffix('')}`",
            ) from error
        except UnicodeDecodeError as error:
            raise ClientError(
                "INVALID_ARGUMENT", f"{file} is not an SSH public key", "Give a .pub file"
            ) from error
        if "PRIVATE KEY" in text:
            raise ClientError(
                "INVALID_ARGUMENT", f"{file} is a private key, which must not be shared", f"Give {file}.pub"
            )
        keys += [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return keys


def default_public_keys(folder: Path) -> list[Path]:
    """Return the user's own key files in ~/.ssh."""
    return [folder / name for name in DEFAULT_NAMES if (folder / name).is_file()]


def matching_identity(allowed: Iterable[str], folder: Path) -> Path | None:
    """Return the private key in `folder` whose public half is authorized."""
    bodies = {key.split()[1] for key in allowed if len(key.split()) > 1}
    for public in sorted(folder.glob("*.pub")):
        words = public.read_text(errors="replace").split()
        private = public.with_suffix("")
        if len(words) > 1 and words[1] in bodies and private.is_file():
            return private
    return None


def has_proxy(program: str, destination: str) -> bool:
    """Return whether the user's ssh configuration has ProxyJump or ProxyCommand for this destination.

    Such a machine cannot be reached from here, although ssh signs in to it.
    """
    try:
        ran = subprocess.run(
            [program, "-G", "--", destination],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LOGIN_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    settings = [line.split(" ", 1) for line in ran.stdout.splitlines()]
    return any(key in ("proxyjump", "proxycommand") and value != ["none"] for key, *value in settings)


def accepts_ssh(host: str, port: int = SSH_PORT) -> bool:
    """Return whether an ssh server greets on the host; a port may be open before its server answers."""
    try:
        with socket.create_connection((host, port), timeout=CONNECT_SECONDS) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


def quoted(value: str) -> str:
    """Return the value of an ssh option: unquoted, a path with a space is two paths."""
    return f'"{value}"' if " " in value else value
