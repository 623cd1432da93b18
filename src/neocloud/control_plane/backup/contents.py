"""The content of a backup of a cloud, and what it leaves out."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import msgspec

from neocloud.control_plane.backup.archive import BackupError
from neocloud.control_plane.settings_file import CONFIG_FILE, EARLIER_FILE

FORMAT = 2
"""Format of the files in the archive and of the manifest. A release reads its own format and earlier ones.
From 2 on the key of the objects is in it.
"""
MANIFEST = "manifest.json"
STATE, LEDGER = "state.db", "gateway/ledger.db"
DATABASES = (STATE, LEDGER)
REQUIRED = (STATE, "store.key", "credentials.json")
FILES = (
    *("store.key", "credentials.json", "addresses.json", "ranges.json", CONFIG_FILE, EARLIER_FILE),
    *("gateway/key", "tls/ca.pem", "tls/ca.key", "tls/server.pem", "tls/server.key"),
    *("tls/acme-account.json", "tls/acme-certificate.json"),
    "objects/store.key",
)
PUBLIC_FILES = {"tls/ca.pem": 0o644}
NOT_HELD = (
    "volumes, disks, shared file systems and images",
    "objects in buckets, and images in registries: `neo storage backup`",
    "models, and the results of fine-tuning jobs",
    "files, batches, vector stores and responses of the OpenAI-compatible API",
    "logs",
)
MAX_FILE_BYTES = 16 * 1024**2
"""Largest file except for the databases."""
MAX_DATABASE_BYTES = 256 * 1024**3
MAX_MANIFEST_BYTES = 1024**2


@dataclass(frozen=True)
class Content:
    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The description of a backup in itself, encrypted like the rest."""

    format: int
    release: str
    schema: str
    """The revision of the database."""
    made_at: str
    home: str
    resources: Mapping[str, int]
    """Their number by kind."""
    files: Mapping[str, Content]
    outside: tuple[str, ...] = ()
    """Files of the operator that the settings name, and that are not in the backup."""

    @property
    def size(self) -> int:
        return sum(each.size for each in self.files.values())


def manifest_text(manifest: Manifest) -> str:
    return json.dumps(asdict(manifest), indent=2)


def read_manifest(text: bytes) -> Manifest:
    """Return the manifest of a backup that this release can restore. Raises BackupError."""
    try:
        manifest = msgspec.json.decode(text, type=Manifest)
    except (ValueError, RecursionError):  # those of msgspec are ValueErrors
        raise unusable("its list of files cannot be read") from None
    if manifest.format > FORMAT:
        raise too_new(manifest)
    _check_files(manifest.files)
    return manifest


def _check_files(files: Mapping[str, Content]) -> None:
    unknown = [name for name in files if name not in (*DATABASES, *FILES)]
    if unknown:
        raise unusable(f"{unknown[0]!r} in it is not a file of a cloud's state")
    absent = [name for name in REQUIRED if name not in files]
    if absent:
        raise unusable(f"{absent[0]} is missing")
    for name, each in files.items():
        if not 0 <= each.size <= (MAX_DATABASE_BYTES if name in DATABASES else MAX_FILE_BYTES):
            raise unusable(f"{name} in it is too large ({each.size:,} bytes)")


def unusable(why: str) -> BackupError:
    return BackupError(f"The backup cannot be used: {why}", "Use another copy of it")


def too_new(manifest: Manifest) -> BackupError:
    return BackupError(
        f"The backup was made by Neocloud {manifest.release}, which is newer (schema {manifest.schema})",
        f"Restore it with Neocloud {manifest.release} or a later release",
    )
