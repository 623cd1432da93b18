"""Which images, sounds and videos a request may name: those in the request itself, or on allowed hosts.

An engine fetches what a URL names, from inside of the operator's network. So only `data:` URLs pass, and
https URLs of hosts that the operator allows.
"""

from collections.abc import Iterator, Set
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from neocloud.gateway.errors import OpenAiError, bad_request

MAX_MEDIA = 64
"""Images, sounds and videos of one request."""
_REFUSED_TYPES = ("image_embeds", "audio_embeds", "video_embeds", "prompt_embeds", "image_pil")
"""Tensors, which an engine reads with code that trusts them."""


def check(value: Any, param: str, allowed: Set[str]) -> None:
    """Look at the whole of one value of the input, e.g. a list of content parts.

    Raises OpenAiError 400. Recursion is bounded by the depth of what `json_input` lets in.
    """
    for url in _urls(value, param):
        if not _is_allowed(url, allowed):
            raise _refused(url, param, allowed)


def _urls(value: Any, param: str) -> Iterator[Any]:
    """Everything under a key that engines take for a URL, and what is below it."""
    if isinstance(value, list):
        for each in value:
            if isinstance(each, dict | list):
                yield from _urls(each, param)
    elif isinstance(value, dict):
        kind = value.get("type")
        if kind in _REFUSED_TYPES or not value.keys().isdisjoint(_REFUSED_TYPES):
            raise bad_request("Media embeddings are not accepted. Send the media itself.", param=param)
        for key, each in value.items():
            if key.endswith("_url"):
                yield each.get("url") if isinstance(each, dict) else each
            if key != "annotations" and isinstance(each, dict | list):
                yield from _urls(each, param)


def _is_allowed(url: Any, allowed: Set[str]) -> bool:
    if url is None:
        return True  # the engine says what is missing
    if not isinstance(url, str):
        return False
    if url[:5].lower() == "data:":
        return True
    if not allowed or not url.isascii() or not url.isprintable() or "\\" in url or " " in url:
        return False
    try:
        found = urlsplit(url)
        host, has_login, _ = found.hostname or "", "@" in found.netloc, found.port
    except ValueError:
        return False
    return found.scheme == "https" and not has_login and host in allowed and not _is_address(host)


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _refused(url: Any, param: str, allowed: Set[str]) -> OpenAiError:
    hosts = f" or an https URL on {', '.join(sorted(allowed))}" if allowed else ""
    return bad_request(
        f"The URL {str(url)[:80]!r} is not allowed. Send the media as a data: URL{hosts}.",
        param=param,
        code="media_url_not_allowed",
    )
