"""AllowedHosts that the operator lets engines fetch from, as the gateway reads them."""

from pathlib import Path
from typing import Any

import pytest

from neocloud.control_plane.gateway_supervisor import GatewayProcess
from neocloud.control_plane.settings_file import parse_arguments, write_settings
from neocloud.model_gateway.__main__ import settings_of
from neocloud.model_gateway.api.errors import OpenAiError
from neocloud.model_gateway.api.fields import check_media
from neocloud.services.inference.render import ModelServerView, server_arguments
from neocloud.settings.settings import Settings

ALLOWED = frozenset(("media.example.com", "10.0.0.7"))


@pytest.mark.parametrize(
    "url", ["https://media.example.com/a.png", "https://MEDIA.example.com:8443/a?b=c", "data:image/png,a"]
)
def test_an_allowed_host_passes(url: str) -> None:
    check_media({"image_url": url}, "messages", ALLOWED)


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
def test_others_do_not(url: Any) -> None:
    with pytest.raises(OpenAiError) as caught:
        check_media({"image_url": {"url": url}}, "messages", ALLOWED)
    assert caught.value.code == "media_url_not_allowed"


def test_links_of_citations_are_no_media() -> None:
    check_media([{"annotations": [{"image_url": "https://evil.test/"}]}], "input", frozenset())


def test_domains_that_neo_up_was_given_reach_the_gateway_and_the_engines(tmp_path: Path) -> None:
    write_settings(Settings(home=tmp_path, media_domains=("media.example.com", "b.example")))
    _, settings = parse_arguments(["--home", str(tmp_path)])
    assert Settings().media_domains == ()
    options = [f"--media-domain={domain}" for domain in settings.media_domains]
    process = GatewayProcess.of(tmp_path, 1, "127.0.0.1:2", options)
    assert settings_of(process._arguments()[3:]).media_domains == {"media.example.com", "b.example"}
    view = ModelServerView(*("bank", 1, 1, 1), media_domains=settings.media_domains)
    words = server_arguments(view, "/model", host="0.0.0.0", port=1)
    place = words.index("--allowed-media-domains")
    assert words[place + 1 : place + 3] == ["media.example.com", "b.example"]
    assert words[place + 3 :] == [] or words[place + 3].startswith("--")


@pytest.mark.parametrize("name", ["https://a.example", "*", "", "10.0.0.7", "a.example:80", "::1"])
def test_what_is_no_domain_is_refused(name: str) -> None:
    with pytest.raises(SystemExit):
        parse_arguments([f"--media-domain={name}"])
