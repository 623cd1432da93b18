"""Web pages reach the gateway under none of their own names (DNS rebinding): it answers for its own names
only.
"""

import sys
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import httpx
import pytest

from neocloud.control_plane.gateway_supervisor import GatewayProcess as Supervised
from neocloud.control_plane.settings_file import parse_arguments, write_settings
from neocloud.data_plane.http.server import HostNames
from neocloud.data_plane.metrics_keys import load_or_make_scrape_key
from neocloud.settings.settings import Settings
from neocloud.testing.gateway import GatewayProcess, gateway_process
from tests.fast.model_gateway.conftest import CHAT, body

PATHS = ["/v1/models", "/v1/files", "/metrics", "/health", "/chat", "/chat/session", "/chat/v1/models", "/"]
FOREIGN = [
    "evil.example",
    "evil.example:8900",
    "127.0.0.1.evil.example",
    "localhost.evil.example:8900",
    "evil-localhost",
    "10.0.0.1:8900",
    "[2001:db8::1]:8900",
    "169.254.169.254",
    "[::1",
    "",
]
OWN = "models.bank.example"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    home = tmp_path_factory.mktemp("hosts")
    with gateway_process(home, "--known-host", OWN, "--known-host", "[2001:db8::9]") as started:
        yield started


def get(gateway: GatewayProcess, path: str, host: str) -> httpx.Response:
    return httpx.get(gateway.url + path, headers={**gateway.headers, "Host": host}, timeout=60)


@pytest.mark.parametrize("host", [each for each in FOREIGN if each != "[::1"])
def test_a_foreign_name_is_refused_everywhere(gateway: GatewayProcess, host: str) -> None:
    answers = [get(gateway, path, host) for path in PATHS]
    answers.append(
        httpx.post(gateway.url + CHAT, json=body(), headers={**gateway.headers, "Host": host}, timeout=60)
    )
    origin = {"Origin": f"http://{host}", "Host": host}
    answers.append(httpx.post(gateway.url + "/chat/session", json={"code": "x"}, headers=origin, timeout=60))
    for answer in answers:
        assert answer.status_code == 421, answer.text
        error = answer.json()["error"]
        assert error["code"] == "unknown_host" and "--gateway-host" in error["message"]
        assert answer.headers["x-request-id"]


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8900", "localhost.", "127.0.0.1", "127.8.8.8:1", "[::1]:80"]
)
def test_names_of_this_machine_are_answered(gateway: GatewayProcess, host: str) -> None:
    assert [get(gateway, path, host).status_code for path in ("/v1/models", "/chat")] == [200] * 2
    assert read_metrics(gateway, gateway.scrape_key, host=host).status_code == 200


@pytest.mark.parametrize("host", [OWN, OWN.upper() + ":443", "[2001:db8::9]"])
def test_names_of_the_operators_are_answered_but_for_metrics(gateway: GatewayProcess, host: str) -> None:
    assert get(gateway, "/v1/models", host).status_code == 200
    assert get(gateway, "/health", host).status_code == 200
    assert read_metrics(gateway, gateway.scrape_key, host=host).status_code == 403


def read_metrics(gateway: GatewayProcess, token: str = "", **headers: str) -> httpx.Response:
    given = headers | ({"authorization": f"Bearer {token}"} if token else {})
    return httpx.get(f"{gateway.url}/metrics", headers=given, timeout=60)


def test_users_of_the_host_do_not_read_what_tenants_do(gateway: GatewayProcess) -> None:
    """Everybody with an account on the host reaches loopback; the page shows the activity of all tenants."""
    gateway.control_plane.add_caller("operators", tenant="first", projects=["project-a"], is_operator=True)
    gateway.control_plane.add_caller("tenants", tenant="tenant-a", projects=["project-a"])
    key, other = gateway.scrape_key, load_or_make_scrape_key(gateway.home).value
    for token, status in (("", 401), (other, 401), ("tenants", 403), (f"{key}x", 401), (key[:-1], 401)):
        answer = read_metrics(gateway, token)
        assert answer.status_code == status and "neocloud_gateway" not in answer.text
    for headers in (
        {"authorization": f"Basic {key}"},
        {"authorization": key},
        {"x-neocloud-gateway-key": key},
        {"cookie": f"authorization=Bearer {key}"},
    ):
        assert read_metrics(gateway, **headers).status_code == 401
    assert httpx.get(f"{gateway.url}/metrics?token={key}", timeout=60).status_code == 401
    for token in ("operators", key):
        answer = read_metrics(gateway, token)
        assert answer.status_code == 200 and "neocloud_gateway" in answer.text
        assert answer.headers["cache-control"] == "no-store"
    models = httpx.get(f"{gateway.url}/v1/models", headers={"authorization": f"Bearer {key}"}, timeout=60)
    assert models.status_code == 401, "the key opens nothing else"


def test_a_second_host_header_does_not_hide_the_first(gateway: GatewayProcess) -> None:
    for names in (["evil.example", "127.0.0.1"], ["127.0.0.1", "evil.example"]):
        connection = HTTPConnection(gateway.url.removeprefix("http://"), timeout=60)
        connection.putrequest("GET", "/v1/models", skip_host=True)
        for name, value in [*gateway.headers.items(), *(("Host", name) for name in names)]:
            connection.putheader(name, value)
        connection.endheaders()
        assert connection.getresponse().status == 421
        connection.close()


def test_what_is_remembered_of_names_is_bounded() -> None:
    hosts = HostNames(())
    for port in range(2000):
        assert hosts.unknown({"headers": [(b"host", b"localhost:%d" % port)]}) is None
    assert len(hosts._known) == 1000


def test_names_that_neo_up_was_given_reach_the_gateway(tmp_path: Path) -> None:
    write_settings(Settings(home=tmp_path, gateway_hosts=(OWN, "other.example")))
    _, settings = parse_arguments(["--home", str(tmp_path)])
    assert settings.gateway_hosts == (OWN, "other.example")
    assert Settings().gateway_hosts == ()
    options = [f"--known-host={name}" for name in settings.gateway_hosts]
    process = Supervised.of(tmp_path, 1, "127.0.0.1:2", options)
    assert process._arguments()[:3] == [sys.executable, "-m", "neocloud.model_gateway"]
    assert [f"--known-host={name}" in process._arguments() for name in settings.gateway_hosts] == [True] * 2


@pytest.mark.parametrize("name", ["http://a.example", "a b", "", "a/b", "a..b", "*"])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(SystemExit):
        parse_arguments([f"--gateway-host={name}"])
