"""Models as OCI artifacts: one layer for each file, as `oras push` makes them, with the types of ModelPack.

    https://github.com/modelpack/model-spec

`oras pull` writes the files into a folder. The same files make the same artifact, whenever they are pushed.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from neocloud.cli.registry.client import Blob, Descriptor, RegistryClient, described
from neocloud.cli.storage.places import BucketPlace
from neocloud.client.errors import ClientError
from neocloud.core.s3_calls import S3

MODEL = "application/vnd.cncf.model"
ARTIFACT_TYPE, CONFIG_TYPE = f"{MODEL}.manifest.v1+json", f"{MODEL}.config.v1+json"
WEIGHTS, SETTINGS, DOCUMENT = (f"{MODEL}.{each}.v1.raw" for each in ("weight", "weight.config", "doc"))
NAMES = ("org.opencontainers.image.title", "org.cncf.model.filepath")
FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
"""File names that can be read from registries: no folder, and no dot in front."""
MOST_FILES = 1000
CHUNK_BYTES = 1024**2
_DOCUMENTS = re.compile(r"(README|LICENSE|NOTICE|USE_POLICY)(\..*)?|.*\.(md|txt|pdf)")
_SETTINGS = frozenset({"merges.txt", "vocab.txt"})
_MODELS = ("config.json", "adapter_config.json")


@dataclass(frozen=True)
class ModelFile:
    name: str
    size: int
    read: Callable[[], Iterator[bytes]]
    digest: str = ""
    """"": known once it was read."""


@dataclass(frozen=True)
class PushedModel:
    digest: str
    files: int
    size: int


def files_of_folder(folder: Path) -> tuple[Sequence[ModelFile], Sequence[str]]:
    """Return the files directly in the folder, and the names of what is left out. Raises ClientError."""
    try:
        names = sorted(path.name for path in folder.iterdir())
        kept = [name for name in names if FILE_NAME.fullmatch(name) and (folder / name).is_file()]
        found = [_local(folder / name) for name in kept]
    except OSError as error:
        raise ClientError(
            "FAILED_PRECONDITION",
            f"{error.filename or folder} cannot be read: {error.strerror}",
            "Run this as a user who may read it",
        ) from error
    _check(str(folder), kept)
    return found, [name for name in names if name not in kept]


def files_of_bucket(s3: S3, place: BucketPlace) -> tuple[Sequence[ModelFile], Sequence[str]]:
    """Return the objects directly below a folder of a bucket, and what is left out. Raises ClientError."""
    from neocloud.cli.storage.listing import level  # noqa: PLC0415  botocore takes a while to load

    _, items = level(s3, place.bucket, place.prefix)
    names = {each.name.removeprefix(place.prefix): each for each in items}
    kept = [name for name in names if FILE_NAME.fullmatch(name)]
    _check(str(place), kept)
    files = [ModelFile(name, names[name].size, _object(s3, place.child(name))) for name in kept]
    return files, [name for name in names if name and name not in kept]


def push_model(
    registry: RegistryClient, files: Sequence[ModelFile], name: str, show: Callable[[str], None]
) -> PushedModel:
    """Push the files that are not there yet, and then the manifest. Raises ClientError."""
    layers: list[Descriptor] = []
    for number, each in enumerate(files, 1):
        show(f"{number} of {len(files)}: {each.name}")
        blob = Blob(each.digest, each.size)
        if not each.digest or not registry.has_blob(each.digest):
            blob = registry.push_blob(each.read())
        if blob.size != each.size or each.digest not in ("", blob.digest):
            raise ClientError("ABORTED", f"{each.name} changed while it was read", "Run the command again")
        layers.append(described(blob, _type_of(each.name), dict.fromkeys(NAMES, each.name)))
    document = {
        "descriptor": {"name": name},
        "config": {"format": "safetensors"},
        "modelfs": {"type": "layers", "diffIds": [each["digest"] for each in layers]},
    }
    config = described(registry.push_bytes(json.dumps(document).encode()), CONFIG_TYPE)
    digest = registry.push_manifest(config, layers, artifactType=ARTIFACT_TYPE)
    return PushedModel(digest, len(files), sum(each.size for each in files))


def _check(where: str, names: Sequence[str]) -> None:
    if not set(_MODELS) & set(names) or not any(name.endswith(".safetensors") for name in names):
        raise ClientError(
            "INVALID_ARGUMENT",
            f"{where} is not the folder of a model: it lacks *.safetensors, or {' and '.join(_MODELS)}",
            "Name the folder in which these files are",
        )
    if len(names) > MOST_FILES:
        raise ClientError("INVALID_ARGUMENT", f"{where} has more than {MOST_FILES:,} files")


def _local(path: Path) -> ModelFile:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return ModelFile(path.name, file.tell(), lambda: _chunks(path), f"sha256:{digest}")


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


def _object(s3: S3, place: BucketPlace) -> Callable[[], Iterator[bytes]]:
    def read() -> Iterator[bytes]:
        from neocloud.cli.storage.service import s3_errors  # noqa: PLC0415

        with s3_errors(place):
            answer = s3.get_object(Bucket=place.bucket, Key=place.key, ChecksumMode="ENABLED")
            yield from answer["Body"].iter_chunks(CHUNK_BYTES)  # checks length and checksum at the end

    return read


def _type_of(name: str) -> str:
    if name.endswith(".safetensors"):
        return WEIGHTS
    return DOCUMENT if _DOCUMENTS.fullmatch(name) and name not in _SETTINGS else SETTINGS
