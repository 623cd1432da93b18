"""Resources that are kept for a while after their deletion, and can be brought back: buckets."""

from shlex import quote
from typing import Any

from neocloud.cli.output import say
from neocloud.cli.resources.noun import Noun
from neocloud.client.connection import Client
from neocloud.client.errors import ClientError
from neocloud.core import contract

UNDELETE = "Undelete"


def say_until_when_kept(noun: Noun, client: Client, resource_id: str, name: str) -> None:
    """Say how to bring back a resource whose deletion has been accepted, if it is kept."""
    kept = _kept(noun, client, "Get", {"id": resource_id})
    if kept is not None:
        at = contract.to_datetime(kept.status.purge_at)
        say(f"It is kept until {at:%Y-%m-%d %H:%M} UTC. Bring it back: {_command(noun, name)}")


def refuse_name_of_deleted(noun: Noun, client: Client, parent_id: str, name: str) -> None:
    """Raise ClientError if the name is taken by a deleted resource that is kept in the same parent."""
    kept = _kept(noun, client, "GetByName", {"parent_id": parent_id, "name": name})
    if kept is not None:
        raise ClientError(
            "ALREADY_EXISTS",
            f"{noun.words.capitalize()} {name!r} was deleted, and is kept until"
            f" {contract.to_datetime(kept.status.purge_at):%Y-%m-%d %H:%M} UTC",
            f"Bring it back with `{_command(noun, name)}`, or remove it permanently with"
            f" `{_command(noun, name, 'purge')}`",
        )


def _kept(noun: Noun, client: Client, verb: str, request: dict[str, str]) -> Any | None:
    """Return a resource that is kept after its deletion; None if there is none that the caller may read."""
    if UNDELETE not in noun.verbs or verb not in noun.verbs:
        return None
    try:
        found = client.call(noun.rpc(verb).path, request)
    except ClientError as error:
        if error.code not in ("NOT_FOUND", "PERMISSION_DENIED"):
            raise
        return None
    return found if found.status.HasField("purge_at") else None


def _command(noun: Noun, name: str, verb: str = "undelete") -> str:
    return f"neo {noun.service.split('.')[1]} {noun.name} {verb} {quote(name)}"
