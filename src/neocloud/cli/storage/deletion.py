"""Deletes many objects or files, and says which could not be deleted."""

from collections.abc import Iterable, Iterator
from itertools import islice

from neocloud.cli.storage.copier import LocalRoot, RemoteRoot, Root, remove
from neocloud.cli.storage.runner import Outcome
from neocloud.cli.storage.service import s3_errors
from neocloud.client.errors import ClientError
from neocloud.core.s3_calls import S3, Answer

AT_ONCE = 1000
"""Objects that S3 deletes in one request."""


def delete_all(s3: S3, root: Root, names: Iterable[str], outcome: Outcome) -> None:
    """Delete these. Errors of single ones are in the outcome; those of S3 as a whole raise ClientError."""
    rest = iter(names)
    while batch := list(islice(rest, AT_ONCE)):
        if isinstance(root, RemoteRoot):
            _delete_objects(s3, root, batch, outcome)
        else:
            _delete_files(s3, root, batch, outcome)


def _delete_objects(s3: S3, root: RemoteRoot, names: list[str], outcome: Outcome) -> None:
    keys = [{"Key": root.at(name).key} for name in names]
    with s3_errors(root.place):
        answer = s3.delete_objects(Bucket=root.place.bucket, Delete={"Objects": keys, "Quiet": True})
    failed = list(_failed(answer))
    for key, message in failed:
        outcome.fail(key, ClientError("UNKNOWN", f"{root.place.bucket}/{key} is not deleted: {message}"))
    outcome.deleted += len(names) - len(failed)


def _failed(answer: Answer) -> Iterator[tuple[str, str]]:
    for each in answer.get("Errors", ()):
        yield each.get("Key", ""), each.get("Message") or each.get("Code", "")


def _delete_files(s3: S3, root: LocalRoot, names: list[str], outcome: Outcome) -> None:
    for name in names:
        try:
            remove(s3, root, name)
        except OSError as error:
            outcome.fail(root.show(name), error)
        else:
            outcome.deleted += 1
