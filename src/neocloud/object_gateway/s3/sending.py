# pyright: strict
"""Send a response: the body at once, or what a reader reads."""

from collections.abc import Callable

from starlette.types import Send

from neocloud.object_gateway.s3.body import Body
from neocloud.object_gateway.s3.context import Response

Headers = list[tuple[bytes, bytes]]


async def send_response(
    send: Send, body: Body, response: Response, head: Callable[[bool], Headers], sent: Callable[[int], None]
) -> None:
    """`head` returns the headers: where bytes of the request are still to come, the connection has to be
    closed after the response, as they would be taken for the next request. `sent` is called with the number
    of bytes.
    """
    reader = response.reader
    try:
        is_last = not await body.drain()
        await send({"type": "http.response.start", "status": response.status, "headers": head(is_last)})
        if reader is None:
            sent(len(response.body))
            await send({"type": "http.response.body", "body": response.body, "more_body": is_last})
            if is_last:
                await body.discard()  # a close with bytes unread would take the response from the client
                await send({"type": "http.response.body", "body": b""})
            return
        left = reader.length
        async for chunk in reader:
            left -= len(chunk)
            await send({"type": "http.response.body", "body": chunk, "more_body": left > 0})
            sent(len(chunk))
        if left or not reader.length:
            await send({"type": "http.response.body", "body": b""})
    finally:
        if reader is not None:
            await reader.close()


def encoded(headers: dict[str, str]) -> Headers:
    return [(name.encode("latin-1"), _value(value)) for name, value in headers.items()]


def _value(text: str) -> bytes:
    """Return the value of a header; what is not of Latin-1 is sent as UTF-8."""
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        return text.encode()
