"""Find resources of several kinds with one call. A server of the release before has no search: None then."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from google.protobuf.message import Message

from neocloud.client.connection import Client
from neocloud.client.errors import ClientError
from neocloud.core import contract

if TYPE_CHECKING:
    from neocloud.messages.neocloud.search.v1 import FindResourcesResponse

FIND = "neocloud.search.v1.SearchService/Find"
MOST_IDS = 100
"""Ids in one search."""
PAGE_SIZE = 1000


def find(
    client: Client, services: Iterable[str] = (), **conditions: object
) -> "FindResourcesResponse | None":
    """Return the first page of resources of these services, or of all, that meet the conditions."""
    kinds = [kind_of(service) for service in services]
    try:
        return client.call(FIND, {"kinds": kinds, "page_size": PAGE_SIZE, **conditions})
    except ClientError as error:
        if error.code != "UNIMPLEMENTED":
            raise
        return None


@cache
def kind_of(service: str) -> str:
    """Return the kind of the service's resources: "nebius.compute.v1.Disk" for DiskService."""
    return contract.method(f"{service}/Get").output.DESCRIPTOR.full_name


def names_in(client: Client, answer: Message, prefixes: Iterable[str]) -> Mapping[str, str] | None:
    """Return the names of the resources that the answer refers to, by id; of ids with these prefixes."""
    wanted = frozenset(prefixes)
    ids = list(dict.fromkeys(text for text in _texts(answer) if _is_id(text, wanted)))[:MOST_IDS]
    found = find(client, ids=ids) if ids else None
    return None if found is None else {item.id: item.name for item in found.items}


def _is_id(text: str, prefixes: frozenset[str]) -> bool:
    return contract.is_id(text) and contract.id_prefix(text) in prefixes


def _texts(message: Any) -> Iterator[str]:
    """Iterate over the texts in a message; not over the keys of maps, which name nothing."""
    for field, content in message.ListFields():
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        values: Sequence[Any] = (
            list(content.values()) if is_map else content if field.is_repeated else [content]
        )
        for value in values:
            if isinstance(value, str):
                yield value
            elif isinstance(value, Message):
                yield from _texts(value)
