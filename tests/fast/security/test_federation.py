"""Requests of the cloud on behalf of tenants: issuers of federations, and the tokens that they sign."""

import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest

from neocloud.services.iam.access.federation import Issuers
from neocloud.services.iam.access.outgoing import MAX_ANSWER_BYTES, Outgoing, Unanswered
from tests.fast.services.iam.conftest import Cloud, direct_http, running_cloud
from tests.fast.services.iam.provider import Provider, running_provider
from tests.fast.services.iam.test_exchange_by_actor import from_workload, trust, workload_token
from tests.fast.services.iam.test_oidc import REDIRECT, begin, browse, call, federate


@pytest.fixture
async def cloud() -> AsyncIterator[Cloud]:
    async with running_cloud() as started:
        yield started


@pytest.fixture
def provider() -> Iterator[Provider]:
    with running_provider() as started:
        yield started


class Internal:
    """A service on loopback that is nobody's business, and what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.status = 200
        self.headers: dict[str, str] = {"content-type": "application/json"}
        self.body = b'{"secret": 1}'
        self.address = ""


@contextmanager
def internal() -> Iterator[Internal]:
    service = Internal()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            service.asked.append(f"{self.command} {self.path}")
            self.send_response(service.status)
            for name, value in service.headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(service.body)))
            self.end_headers()
            self.wfile.write(service.body)

        do_POST = do_GET

        def log_message(self, format: str, *args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    service.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield service
    finally:
        server.shutdown()
        server.server_close()


def leads_to(*addresses: str) -> Any:
    async def resolve(host: str, port: int) -> Sequence[str]:
        return addresses

    return resolve


# Addresses


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.0.0.1", "192.168.1.1", "169.254.169.254", "168.63.129.16", "100.100.100.200", "::1",
     "fd00:ec2::254", "::ffff:127.0.0.1", "fe80::1", "0.0.0.0"],
)  # fmt: skip
async def test_an_issuer_with_an_address_inside_is_not_asked(address: str) -> None:
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(200, json={})

    for named in ([address], ["1.1.1.1", address]):
        outgoing = Outgoing(
            lambda: httpx.AsyncClient(transport=httpx.MockTransport(answer)), leads_to(*named)
        )
        with pytest.raises(Unanswered, match="not public"):
            await outgoing.fetch("GET", "https://issuer.example/x")
    assert not asked


@pytest.mark.parametrize("address", ["169.254.169.254", "fd00:ec2::254", "100.100.100.200", "168.63.129.16"])
async def test_metadata_services_are_refused_where_private_addresses_are_allowed(address: str) -> None:
    with pytest.raises(Unanswered, match="not public"):
        await Outgoing(resolve=leads_to(address), allow_private=True).fetch("GET", "https://issuer.example/x")


async def test_the_connection_goes_to_the_address_that_was_checked() -> None:
    """The name is resolved once: one that leads elsewhere a moment later (DNS rebinding) gains nothing."""
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, stream=httpx.ByteStream(b'{"ok": true}'))

    lookups: list[str] = []

    async def rebinding(host: str, port: int) -> Sequence[str]:
        lookups.append(host)
        return ["1.1.1.1"] if len(lookups) == 1 else ["127.0.0.1"]

    outgoing = Outgoing(lambda: httpx.AsyncClient(transport=httpx.MockTransport(answer)), rebinding)
    assert await outgoing.fetch("GET", "https://issuer.example:8443/x?y=1") == {"ok": True}
    (request,) = seen
    assert str(request.url) == "https://1.1.1.1:8443/x?y=1"
    assert request.headers["host"] == "issuer.example:8443"
    assert request.extensions["sni_hostname"] == "issuer.example"
    assert lookups == ["issuer.example"]


@pytest.mark.parametrize(
    "url",
    ["http://issuer.example/", "ftp://issuer.example/", "https://u:p@issuer.example/", "https://", "x",
     "https://[x", "https://issuer.example:0/", "https://issuer.example:99999/"],
)  # fmt: skip
async def test_what_is_no_https_address_is_not_asked(url: str) -> None:
    with pytest.raises(Unanswered):
        await Outgoing(resolve=leads_to("1.1.1.1"), allow_private=True).fetch("GET", url)


async def test_redirects_are_not_followed() -> None:
    with internal() as service:
        service.status, service.headers = 302, {"location": f"{service.address}/secret"}
        with pytest.raises(Unanswered, match="302"):
            await Outgoing(direct_http, allow_private=True).fetch("GET", f"{service.address}/x")
        assert service.asked == ["GET /x"]


async def test_long_and_compressed_answers_are_given_up() -> None:
    with internal() as service:
        service.body = b" " * (MAX_ANSWER_BYTES + 1)
        with pytest.raises(Unanswered, match="more than"):
            await Outgoing(direct_http, allow_private=True).fetch("GET", service.address)
        service.body, service.headers = b"\x1f\x8b\x08 not unpacked", {"content-encoding": "gzip"}
        with pytest.raises(Unanswered, match="not JSON"):
            await Outgoing(direct_http, allow_private=True).fetch("GET", service.address)
        service.body, service.headers = b"[" * 100_000, {}
        with pytest.raises(Unanswered, match="not JSON"):
            await Outgoing(direct_http, allow_private=True).fetch("GET", service.address)


# What a tenant's administrator and a caller without a token can bring about


async def test_an_issuer_on_this_machine_is_asked_only_with_the_operators_word(
    cloud: Cloud, provider: Provider
) -> None:
    federation_id = await federate(cloud, provider)
    robot_id = await cloud.make_account("robot")
    await trust(cloud, robot_id, provider)
    cloud.provided.add(Issuers, Issuers(cloud.clock, Outgoing(direct_http)))
    answer = await call(cloud, "StartOidc", {"federationId": federation_id, "redirectUri": REDIRECT})
    assert answer.code == "unavailable"
    answer = await from_workload(cloud, robot_id, workload_token(cloud, provider))
    assert answer.code == "unauthenticated"
    assert provider.key_requests == 0


async def test_endpoints_elsewhere_are_neither_asked_nor_shown(cloud: Cloud, provider: Provider) -> None:
    with internal() as service:
        for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
            provider.endpoints = {name: f"{service.address}/elsewhere"}
            cloud.provided.add(Issuers, Issuers(cloud.clock, Outgoing(direct_http, allow_private=True)))
            federation_id = await federate(cloud, provider, name=f"corp-{name.replace('_', '-')}")
            answer = await call(cloud, "StartOidc", {"federationId": federation_id, "redirectUri": REDIRECT})
            assert (answer.code, service.address in str(answer.body)) == ("unavailable", False)
        assert not service.asked


def test_the_operator_allows_exact_hosts() -> None:
    outgoing = Outgoing(hosts=frozenset({"keys.example"}))
    issuer = "https://issuer.example/realm"
    assert outgoing.may_serve(issuer, "https://issuer.example:443/keys")
    assert outgoing.may_serve(issuer, "https://keys.example/keys")
    assert Outgoing().may_serve("https://accounts.google.com", "https://oauth2.googleapis.com/token")
    for endpoint in (
        "https://a.keys.example/", "http://keys.example/", "https://keys.example:8443/",
        "https://issuer.example:8443/", "http://issuer.example/", "https://issuer.example@evil.example/", "x",
    ):  # fmt: skip
        assert not outgoing.may_serve(issuer, endpoint), endpoint


async def test_every_failure_reads_the_same(cloud: Cloud, provider: Provider, caplog: Any) -> None:
    """Closed port, status, no JSON, another name, no keys: the error reveals nothing about an address."""
    robot_id = await cloud.make_account("robot")
    messages = set()

    async def say(issuer: str) -> None:
        spec = {"oidcProvider": {"issuerUrl": issuer}, "federatedSubjectId": "me", "subjectId": robot_id}
        body = {"metadata": {"parentId": cloud.bank.project_id}, "spec": spec}
        await cloud.made("FederatedCredentialsService/Create", body)
        token = workload_token(cloud, provider, iss=issuer, sub="me")
        answer = await from_workload(cloud, robot_id, token)
        assert answer.code == "unauthenticated"
        messages.add(answer.message)

    with internal() as service:
        for number, (status, body) in enumerate(
            ((500, b""), (200, b"x"), (200, b"[]"), (200, b"{}"), (302, b""), (200, b'{"issuer": 1}'))
        ):
            service.status, service.body = status, body
            await say(f"{service.address}/{number}")
        closed = service.address
    await say(closed)
    await say("http://127.0.0.1:1")
    assert len(messages) == 1, messages
    assert "status 500" in caplog.text and "not JSON" in caplog.text


async def test_an_issuer_that_failed_is_left_alone_for_a_while(cloud: Cloud, provider: Provider) -> None:
    """StartOidc needs no token: it must not be a way to have the cloud send requests at will."""
    with internal() as service:
        federation_id = await federate(cloud, provider, issuerUrl=service.address)
        body = {"federationId": federation_id, "redirectUri": REDIRECT}
        for _ in range(5):
            assert (await call(cloud, "StartOidc", body)).code == "unavailable"
        assert len(service.asked) == 1


# RFC 9207


async def test_a_code_of_another_issuer_is_not_redeemed(cloud: Cloud, provider: Provider) -> None:
    federation_id = await federate(cloud, provider)
    begun = await begin(cloud, federation_id)
    brought = await browse(begun["authorizationUrl"])
    right = {"loginToken": begun["loginToken"], **brought}
    wrong = await call(cloud, "FinishOidc", {**right, "iss": "https://evil.example"})
    assert (wrong.code, "by this issuer" in wrong.message) == ("unauthenticated", True)
    assert (await call(cloud, "FinishOidc", {**right, "iss": provider.issuer})).status == 200


async def test_an_issuer_that_names_itself_must_be_named(cloud: Cloud, provider: Provider) -> None:
    provider.endpoints = {"authorization_response_iss_parameter_supported": True}
    federation_id = await federate(cloud, provider)
    begun = await begin(cloud, federation_id)
    brought = await browse(begun["authorizationUrl"])
    right = {"loginToken": begun["loginToken"], **brought}
    assert (await call(cloud, "FinishOidc", right)).code == "unauthenticated"
    assert (await call(cloud, "FinishOidc", {**right, "iss": provider.issuer})).status == 200


# Times and reuse of tokens


@pytest.mark.parametrize(
    "expires", [float("nan"), float("inf"), float("-inf"), "NaN", "99999999999", True, None, 10**400, [], {}]
)
async def test_a_token_ends_at_a_time_that_is_a_number(
    cloud: Cloud, provider: Provider, expires: Any
) -> None:
    """NaN is neither before nor after any time; a text in quotes was read as a number."""
    answer = await cloud.exchange(cloud.subject_token(cloud.bank.credentials, exp=expires))
    assert answer.code in ("unauthenticated", "invalid_argument"), answer
    robot_id = await cloud.make_account("robot")
    await trust(cloud, robot_id, provider)
    token = workload_token(cloud, provider, exp=expires)
    assert (await from_workload(cloud, robot_id, token)).code == "unauthenticated"


@pytest.mark.parametrize("name", ["iat", "nbf"])
@pytest.mark.parametrize("value", [float("nan"), float("-inf"), "1", -(10**400)])
async def test_a_token_begins_at_a_time_that_is_a_number(cloud: Cloud, name: str, value: Any) -> None:
    answer = await cloud.exchange(cloud.subject_token(cloud.bank.credentials, **{name: value}))
    assert answer.code in ("unauthenticated", "invalid_argument"), answer


@pytest.mark.parametrize("audience", [None, "", [], "another", ["another"], 1, {"neocloud": 1}])
async def test_a_subject_token_must_be_meant_for_this_cloud(cloud: Cloud, audience: Any) -> None:
    answer = await cloud.exchange(cloud.subject_token(cloud.bank.credentials, aud=audience))
    assert answer.code == "unauthenticated", answer


async def test_a_subject_token_is_not_replayed_within_its_hour(cloud: Cloud) -> None:
    until = int(cloud.clock.now().timestamp()) + 3600
    token = cloud.subject_token(cloud.bank.credentials, exp=until)
    assert (await cloud.exchange(token)).status == 200
    assert (await cloud.exchange(token)).status == 200  # The first answer may have been lost.
    cloud.clock.offset += timedelta(minutes=2)
    answer = await cloud.exchange(token)
    assert (answer.code, "used before" in answer.message) == ("unauthenticated", True)
    head, _, signature = token.rpartition(".")
    assert (await cloud.exchange(f"{head}.{signature}=")).code != "ok"
    other = cloud.subject_token(cloud.bank.credentials, exp=until)
    assert (await cloud.exchange(other)).status == 200


async def test_an_address_that_nobody_verified_is_no_name_in_the_audit_log(
    cloud: Cloud, provider: Provider
) -> None:
    provider.person = {"sub": "person-9", "email": "operator@bank.example", "email_verified": False}
    federation_id = await federate(cloud, provider)
    begun = await begin(cloud, federation_id)
    brought = await browse(begun["authorizationUrl"])
    signed_in = await call(cloud, "FinishOidc", {"loginToken": begun["loginToken"], **brought})
    assert signed_in.status == 200
    group = {"metadata": {"parentId": cloud.bank.tenant_id, "name": "mine"}, "spec": {}}
    await cloud.call("GroupService/Create", group, token=signed_in.body["accessToken"])
    events, _ = await cloud.store.read(lambda tx: tx.list_audit())
    own = [event for event in events if event.subject == signed_in.body["tenantUserAccountId"]]
    assert len(own) == 2 and {event.subject_name for event in own} == {"person-9"}
