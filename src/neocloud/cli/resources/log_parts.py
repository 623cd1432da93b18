"""Logs that are read part by part: the last lines, and then what was written since."""

from collections.abc import Iterator
from typing import Any

from neocloud.cli.output import JsonObject
from neocloud.client.connection import Client
from neocloud.client.errors import ClientError

POLL_SECONDS = 1.0


def log_parts(client: Client, path: str, request: JsonObject, *, follow: bool) -> Iterator[Any]:
    """Iterate over the answers of a method with `after` and `next_position`; only the first unless following.

    The last answer says `is_complete`, where the method has that field. Raises ClientError to follow a log of
    a server that cannot continue after a position: one of the release before.
    """
    answer = client.call(path, request)
    yield answer
    if follow and answer.text and not answer.next_position:
        raise ClientError(
            "UNIMPLEMENTED", "The cloud is of a release that cannot follow this log", "Leave out --follow"
        )
    while follow and not getattr(answer, "is_complete", False):
        if not answer.text:
            client.sleep(POLL_SECONDS)
        position = answer.next_position or request.get("after", "")
        request = {**request, "after": position}
        answer = client.call(path, request)
        yield answer
