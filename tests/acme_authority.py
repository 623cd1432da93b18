"""A test double of a certificate authority that speaks ACME (RFC 8555): a small server, and a CA of its own.

It checks what an authority checks: nonces, URLs and signatures of requests (by josepy), names by HTTP
(http-01, at an address that the test gives in place of the DNS), and the request for the certificate. It is
no authority that anybody runs; a run against a public one needs the internet, and was not done.

    python -m tests.acme_authority ADDRESS PORT FOLDER NAME=HOST:PORT
"""

import asyncio
import base64
import datetime
import json
import secrets
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from josepy.b64 import b64encode
from josepy.jwk import JWK
from josepy.jws import JWS

from neocloud.server import CertificateFolder, ensure_certificate

HOUR = datetime.timedelta(hours=1)
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Proof:
    """An authorization, with its one challenge."""

    name: str
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    status: str = "pending"
    error: dict[str, Any] | None = None


@dataclass
class Order:
    proofs: list[Proof]
    account: str
    chain: str = ""

    @property
    def names(self) -> list[str]:
        return [each.name for each in self.proofs]

    @property
    def status(self) -> str:
        found = {each.status for each in self.proofs}
        proved = "valid" if self.chain else "ready"
        return next((each for each in ("invalid", "pending") if each in found), proved)


class Refused(Exception):
    """A problem document, as RFC 8555 has it."""

    def __init__(self, code: str, detail: str, status: int = 400, **headers: str) -> None:
        super().__init__(detail)
        self.problem = {"type": f"urn:ietf:params:acme:error:{code}", "detail": detail}
        self.status, self.headers = status, headers


class Authority:
    def __init__(self, folder: Path, resolved: Callable[[str], str]) -> None:
        """`resolved` returns host and port at which a name is checked."""
        self._resolved = resolved
        self.trust = ensure_certificate(folder, ("localhost", "127.0.0.1", "10.213.0.2"), _now())
        self.trust_file = CertificateFolder(folder).authority
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.issuer = _sign(
            "Test issuer", "Test issuer", self._key.public_key(), self._key, (), _now(), 1000 * HOUR
        )
        self._nonces: set[str] = set()
        self._accounts: dict[str, JWK] = {}
        self.contacts: list[list[str]] = []
        self.orders: list[Order] = []
        self.requests: list[str] = []
        self.port = 0
        # What a test changes:
        self.before: Callable[[web.Request], Awaitable[web.StreamResponse | None]] | None = None
        """Answers in place of the authority, or returns None."""
        self.bad_nonces = 0
        """Refuse so many."""
        self.begins, self.lifetime = -HOUR, 90 * 24 * HOUR
        self.leaf: Callable[[x509.CertificateSigningRequest], dict[str, Any]] = lambda request: {}
        """Returns what to sign in place of what was ordered."""
        self.chain: Callable[[str], str] = lambda chain: chain
        self.challenge_type = "http-01"
        self.meta: dict[str, Any] = {"termsOfService": "https://example.org/terms"}

    @property
    def directory(self) -> str:
        return f"https://127.0.0.1:{self.port}/directory"

    @asynccontextmanager
    async def serving(self, address: str = "127.0.0.1", port: int = 0) -> AsyncIterator["Authority"]:
        application = web.Application(middlewares=[self._around])
        application.add_routes(
            [
                web.get("/directory", self._directory),
                web.route("*", "/nonce", self._empty),
                web.post("/account", self._new_account),
                web.post("/order", self._new_order),
                web.post("/order/{number}", self._order),
                web.post("/authorization/{number}/{proof}", self._authorization),
                web.post("/challenge/{number}/{proof}", self._challenge),
                web.post("/finalize/{number}", self._finalize),
                web.post("/certificate/{number}", self._certificate),
            ]
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.trust.chain_file, self.trust.key_file)
        runner = web.AppRunner(application, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, address, port, ssl_context=context).start()
        self.port = runner.addresses[0][1]
        try:
            yield self
        finally:
            await runner.cleanup()

    # The protocol

    @web.middleware
    async def _around(self, request: web.Request, handler: Answer) -> web.StreamResponse:
        self.requests.append(request.path)
        try:
            found = await self.before(request) if self.before else None
            found = found or await handler(request)
        except Refused as error:
            found = web.json_response(
                error.problem,
                status=error.status,
                headers=error.headers,
                content_type="application/problem+json",
            )
        if not found.prepared:
            nonce = secrets.token_urlsafe(16)
            self._nonces.add(nonce)
            found.headers["Replay-Nonce"] = nonce
        return found

    async def _directory(self, request: web.Request) -> web.StreamResponse:
        base = str(request.url.origin())
        names = {"newNonce": "nonce", "newAccount": "account", "newOrder": "order"}
        return web.json_response(
            {**{name: f"{base}/{path}" for name, path in names.items()}, "meta": self.meta}
        )

    async def _empty(self, request: web.Request) -> web.StreamResponse:
        return web.Response()

    async def _signed(self, request: web.Request) -> tuple[Any, str]:
        """Return the payload and the account's URL. Raises Refused."""
        if request.content_type != "application/jose+json":
            raise Refused("malformed", "not a signed request")
        document = await request.json()
        protected = json.loads(_decoded(document["protected"]))
        if self.bad_nonces or protected["nonce"] not in self._nonces:
            self.bad_nonces = max(0, self.bad_nonces - 1)
            raise Refused("badNonce", "not a nonce of mine")
        self._nonces.remove(protected["nonce"])
        if protected["url"] != str(request.url):
            raise Refused("unauthorized", "signed for another URL")
        if ("jwk" in protected) == ("kid" in protected):
            raise Refused("malformed", "neither a key nor an account, or both")
        is_new = "jwk" in protected
        if not is_new and protected["kid"] not in self._accounts:
            raise Refused("accountDoesNotExist", "no such account")
        key: Any = JWK.from_json(protected["jwk"]) if is_new else self._accounts[protected["kid"]]
        if not JWS.from_json(document).verify(key):
            raise Refused("malformed", "the signature is wrong")
        payload = _decoded(document["payload"])
        if is_new:
            return {**json.loads(payload), "key": key}, ""
        return json.loads(payload) if payload else None, protected["kid"]

    async def _new_account(self, request: web.Request) -> web.StreamResponse:
        wanted, _ = await self._signed(request)
        known = [url for url, key in self._accounts.items() if key == wanted["key"]]
        if not known and not wanted.get("termsOfServiceAgreed"):
            raise Refused("userActionRequired", "the terms are not agreed to")
        url = known[0] if known else f"{request.url.origin()}/account/{secrets.token_hex(4)}"
        if not known:
            self._accounts[url] = wanted["key"]
            self.contacts.append(wanted.get("contact", []))
        return web.json_response({"status": "valid"}, status=200 if known else 201, headers={"Location": url})

    def forget_accounts(self) -> None:
        self._accounts.clear()

    async def _new_order(self, request: web.Request) -> web.StreamResponse:
        wanted, account = await self._signed(request)
        self.orders.append(Order([Proof(each["value"]) for each in wanted["identifiers"]], account))
        number = len(self.orders) - 1
        location = f"{request.url.origin()}/order/{number}"
        return web.json_response(self._shown(request, number), status=201, headers={"Location": location})

    async def _order(self, request: web.Request) -> web.StreamResponse:
        number, _ = await self._of(request)
        return web.json_response(self._shown(request, number))

    async def _authorization(self, request: web.Request) -> web.StreamResponse:
        await self._signed(request)
        proof = self._proof(request)
        shown = {
            "status": proof.status,
            "identifier": {"type": "dns", "value": proof.name},
            "challenges": [self._challenge_of(request, proof)],
        }
        return web.json_response(shown)

    async def _challenge(self, request: web.Request) -> web.StreamResponse:
        _, account = await self._signed(request)
        proof = self._proof(request)
        if proof.status == "pending":
            await self._check(proof, self._accounts[account])
        authorization = str(request.url).replace("/challenge/", "/authorization/")
        headers = {"Link": f'<{authorization}>;rel="up"'}
        return web.json_response(self._challenge_of(request, proof), headers=headers)

    async def _check(self, proof: Proof, key: JWK) -> None:
        """Fetch what proves the name, as RFC 8555, 8.3 says."""
        expected = f"{proof.token}.{b64encode(key.thumbprint()).decode()}"
        url = f"http://{self._resolved(proof.name)}/.well-known/acme-challenge/{proof.token}"
        code, detail = "unauthorized", "another answer"
        try:
            timeout, headers = aiohttp.ClientTimeout(total=20), {"Host": proof.name}
            async with aiohttp.ClientSession(timeout=timeout) as http, http.get(url, headers=headers) as got:
                is_proved = got.status == 200 and (await got.text()).rstrip() == expected
        except (aiohttp.ClientError, TimeoutError) as error:
            is_proved, code, detail = False, "connection", str(error)
        proof.status = "valid" if is_proved else "invalid"
        proof.error = None if is_proved else Refused(code, f"{proof.name}: {detail}").problem

    async def _finalize(self, request: web.Request) -> web.StreamResponse:
        payload, _ = await self._signed(request)
        number = int(request.match_info["number"])
        order = self.orders[number]
        if order.status != "ready":
            raise Refused("orderNotReady", "the names are not proved", 403)
        wanted = x509.load_der_x509_csr(_decoded(payload["csr"]))
        found = wanted.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        if not wanted.is_signature_valid or {*found.get_values_for_type(x509.DNSName)} != {*order.names}:
            raise Refused("badCSR", "it is not for the names of the order")
        signed = {"key": wanted.public_key(), "names": order.names, **self.leaf(wanted)}
        begins = _now() + self.begins
        leaf = _sign("", "Test issuer", signed["key"], self._key, signed["names"], begins, self.lifetime)
        order.chain = self.chain(pem(leaf) + pem(self.issuer))
        return web.json_response(self._shown(request, number))

    async def _certificate(self, request: web.Request) -> web.StreamResponse:
        _, order = await self._of(request)
        return web.Response(text=order.chain, content_type="application/pem-certificate-chain")

    async def _of(self, request: web.Request) -> tuple[int, Order]:
        await self._signed(request)
        number = int(request.match_info["number"])
        return number, self.orders[number]

    def _shown(self, request: web.Request, number: int) -> Mapping[str, Any]:
        order, base = self.orders[number], request.url.origin()
        return {
            "status": order.status,
            "identifiers": [{"type": "dns", "value": name} for name in order.names],
            "authorizations": [f"{base}/authorization/{number}/{each}" for each in range(len(order.proofs))],
            "finalize": f"{base}/finalize/{number}",
            **({"certificate": f"{base}/certificate/{number}"} if order.status == "valid" else {}),
        }

    def _challenge_of(self, request: web.Request, proof: Proof) -> Mapping[str, Any]:
        url = str(request.url).replace("/authorization/", "/challenge/")
        found = {"type": self.challenge_type, "url": url, "token": proof.token, "status": proof.status}
        return {**found, **({"error": proof.error} if proof.error else {})}

    def _proof(self, request: web.Request) -> Proof:
        number, proof = (int(request.match_info[each]) for each in ("number", "proof"))
        return self.orders[number].proofs[proof]


def pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _sign(
    subject: str,
    issuer: str,
    public_key: Any,
    key: ec.EllipticCurvePrivateKey,
    names: Any,
    begins: datetime.datetime,
    lifetime: datetime.timedelta,
) -> x509.Certificate:
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(_name(issuer))
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(begins + lifetime)
        .add_extension(x509.BasicConstraints(ca=not names, path_length=None), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )
    if names:
        found = [x509.DNSName(name) for name in names]
        builder = builder.add_extension(x509.SubjectAlternativeName(found), critical=not subject)
    return builder.sign(key, hashes.SHA256())


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common_name)] if common_name else [])


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


async def _main(address: str, port: str, folder: str, *names: str) -> None:
    hosts = dict(name.split("=", 1) for name in names)
    authority = Authority(Path(folder), hosts.__getitem__)
    Path(folder, "issuer.pem").write_text(pem(authority.issuer))
    async with authority.serving(address, int(port)):
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
