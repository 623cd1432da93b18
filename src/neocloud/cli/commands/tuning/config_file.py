"""`neo tune --config`: settings of a job from a JSON file; the version of an object is recorded."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from neocloud.cli.output import JsonObject
from neocloud.cli.storage.places import SCHEME, bucket_place_of
from neocloud.client.errors import ClientError
from neocloud.core import contract
from neocloud.core.json_values import is_object

LARGEST_BYTES = 64 * 1024
FIELDS = ("suffix", "seed", "merge", "method", "grader", "hyperparameters")
"""Fields of a job's spec that a configuration may set. An option of the command goes before it."""


ConfigOption = Annotated[
    str,
    typer.Option(
        metavar="FILE", help="JSON with settings of the job, a path or s3://BUCKET/KEY; options go before it."
    ),
]


@dataclass(frozen=True)
class Configuration:
    fields: JsonObject = field(default_factory=JsonObject)
    origin: Mapping[str, str] = field(default_factory=dict[str, str])
    """Where it was read, for the metadata of the job."""

    def with_options(self, options: JsonObject, defaults: JsonObject) -> JsonObject:
        """Return the fields of the spec: those of the options that were given, else the configuration's."""
        given = {each: value for each, value in options.items() if value != defaults.get(each)}
        found: JsonObject = {**options, **self.fields, **given}
        found["hyperparameters"] = self.fields.get("hyperparameters", {}) | options["hyperparameters"]
        return {**found, **({"job_metadata": dict(self.origin)} if self.origin else {})}


def read_configuration(context: typer.Context, project: str, source: str) -> Configuration:
    """Read a path or s3://BUCKET/KEY; "": no configuration. Raises ClientError."""
    if not source:
        return Configuration()
    content, version = _object(context, project, source) if source.startswith(SCHEME) else (_file(source), "")
    try:
        found = json.loads(content)
        if not is_object(found):
            raise ValueError("it is no JSON object")
        contract.from_dict(contract.message("neocloud.tuning.v1.FineTuningJobSpec"), found)
    except (ValueError, RecursionError, contract.ApiError) as error:
        raise ClientError("INVALID_ARGUMENT", f"{source} is no configuration of a job: {error}") from error
    unknown = sorted(set(found) - set(FIELDS))
    if unknown:
        raise ClientError(
            "INVALID_ARGUMENT",
            f"{source} sets {', '.join(unknown)}",
            f"A configuration may set {', '.join(FIELDS)}; give the rest as options",
        )
    origin = {"config": source, "config_sha256": hashlib.sha256(content).hexdigest()}
    return Configuration(found, {**origin, **({"config_version": version} if version else {})})


def _file(source: str) -> bytes:
    try:
        with Path(source).open("rb") as file:
            return _small(file.read(LARGEST_BYTES + 1), source)
    except OSError as error:
        raise ClientError("INVALID_ARGUMENT", f"{source} cannot be read: {error.strerror}") from error


def _object(context: typer.Context, project: str, source: str) -> tuple[bytes, str]:
    """Return the newest version of the object, and its id; "" in a bucket without versions."""
    from neocloud.cli.storage.service import s3_errors  # noqa: PLC0415  botocore takes a while to load
    from neocloud.cli.storage.session import s3_session  # noqa: PLC0415

    place = bucket_place_of(source)
    with s3_session(context, project) as s3, s3_errors(place):
        answer = s3.get_object(Bucket=place.bucket, Key=place.key)
        content = _small(answer["Body"].read(LARGEST_BYTES + 1), source)
    return content, answer.get("VersionId", "")


def _small(content: bytes, source: str) -> bytes:
    if len(content) > LARGEST_BYTES:
        raise ClientError("OUT_OF_RANGE", f"{source} has more than {LARGEST_BYTES:,} bytes")
    return content
