"""Hosts that the operator lets engines fetch from, as the gateway reads them."""

import pytest

from neocloud.gateway import media
from neocloud.gateway.errors import OpenAiError

ALLOWED = frozenset(("media.example.com", "10.0.0.7"))


@pytest.mark.parametrize(
    "url", ["https://media.example.com/a.png", "https://MEDIA.example.com:8443/a?b=c", "data:image/png,a"]
)
def test_an_allowed_host_passes(url: str) -> None:
    media.check({"image_url": url}, "messages", ALLOWED)


@pytest.mark.parametrize(
    "url",
    [
        "http://media.example.com/a.png",  # anybody on the way could answer
        "https://media.example.com.evil.test/",
        "https://evil.test/media.example.com",
        "https://media.example.com@evil.test/",
        "https://evil.test\\@media.example.com/",
        "https://evil.test#@media.example.com/",
        "https://media.example.com\t.evil.test/",
        "https://media.example.com:no/",
        "https://10.0.0.7/",  # an address, though it is listed
        "https://[::1]/",
        "https:///a",
        5,
        ["https://media.example.com/"],
    ],
)
def test_others_do_not(url: object) -> None:
    with pytest.raises(OpenAiError) as caught:
        media.check({"image_url": {"url": url}}, "messages", ALLOWED)
    assert caught.value.code == "media_url_not_allowed"


def test_links_of_citations_are_no_media() -> None:
    media.check([{"annotations": [{"image_url": "https://evil.test/"}]}], "input", frozenset())
