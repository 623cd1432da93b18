"""SSH keys of the user: those to authorize and the one to sign in with."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from neocloud.client.errors import ClientError

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
