"""A small OpenID provider on loopback, out of Authlib's server parts: real PKCE, codes, key sets and tokens.

Its one person is signed in already. A test can bend what the tokens say, to see that bent ones are refused.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from authlib.oauth2 import AuthorizationServer
from authlib.oauth2.rfc6749 import ClientMixin, OAuth2Request, grants
from authlib.oauth2.rfc6749.requests import BasicOAuth2Payload
from authlib.oauth2.rfc6750 import BearerTokenGenerator
from authlib.oauth2.rfc7636 import CodeChallenge
from authlib.oidc.core import AuthorizationCodeMixin, OpenIDCode
from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey

CLIENT_ID, CLIENT_SECRET = "neocloud-client", "a-client-secret"


@cache
def provider_key(name: str, key_id: str = "") -> RSAKey:
    """A key pair, made once, under its name or another one's."""
    return RSAKey.generate_key(2048, parameters={"kid": key_id or name, "use": "sig"})


@dataclass
class Code(AuthorizationCodeMixin):
    code: str
    redirect_uri: str
    scope: str
    nonce: str
    code_challenge: str
    code_challenge_method: str

    def get_redirect_uri(self) -> str:
        return self.redirect_uri

    def get_scope(self) -> str:
        return self.scope

    def get_nonce(self) -> str:
        return self.nonce

    def get_auth_time(self) -> Any:
        return None

    def get_acr(self) -> Any:
        return None

    def get_amr(self) -> Any:
        return None


@dataclass
class Provider:
    issuer: str = ""
    person: dict[str, Any] = field(
        default_factory=lambda: {
            "sub": "person-1",
            "email": "carol@corp.example",
            "email_verified": True,
            "name": "Carol",
        }
    )
    bent: dict[str, Any] = field(default_factory=dict)
    """Goes over the claims of tokens."""
    keys: list[RSAKey] = field(default_factory=lambda: [provider_key("first")])
    """What it publishes; it signs with the last."""
    signing_key: RSAKey | None = None
    wants_secret: bool = False
    endpoints: dict[str, Any] = field(default_factory=dict)
    """Goes over what it says of itself."""
    codes: dict[str, Code] = field(default_factory=dict)
    key_requests: int = 0

    def token(self, **claims: Any) -> str:
        """A token as a workload would get it."""
        key = self.signing_key or self.keys[-1]
        return jwt.encode({"alg": "RS256", "kid": key.kid}, {"iss": self.issuer, **claims}, key, ["RS256"])

    def key_set(self) -> dict[str, Any]:
        return dict(KeySet([*self.keys]).as_dict(private=False))


class _Client(ClientMixin):
    def __init__(self, provider: Provider) -> None:
        self.provider = provider

    def get_client_id(self) -> str:
        return CLIENT_ID

    def get_default_redirect_uri(self) -> str:
        return ""

    def get_allowed_scope(self, scope: Any) -> Any:
        return scope

    def check_redirect_uri(self, redirect_uri: str) -> bool:
        return urlsplit(redirect_uri).hostname == "127.0.0.1"

    def check_client_secret(self, client_secret: str) -> bool:
        return client_secret == CLIENT_SECRET

    def check_endpoint_auth_method(self, method: str, endpoint: str) -> bool:
        return method == ("client_secret_basic" if self.provider.wants_secret else "none")

    def check_response_type(self, response_type: str) -> bool:
        return response_type == "code"

    def check_grant_type(self, grant_type: str) -> bool:
        return grant_type == "authorization_code"


class _Request(OAuth2Request):
    payload: Any

    def __init__(self, method: str, fields: dict[str, str], headers: Any) -> None:
        super().__init__(method, "https://provider.example/", headers=headers)
        self.payload = BasicOAuth2Payload(fields)

    @property
    def form(self) -> dict[str, str]:
        return self.payload.data

    @property
    def args(self) -> Any:
        return self.form


class _CodeGrant(grants.AuthorizationCodeGrant):
    TOKEN_ENDPOINT_AUTH_METHODS = ["none", "client_secret_basic", "client_secret_post"]

    def save_authorization_code(self, code: str, request: Any) -> None:
        data = request.payload.data
        names = ("redirect_uri", "scope", "nonce", "code_challenge", "code_challenge_method")
        self.server.provider.codes[code] = Code(code, *(data[name] for name in names))

    def query_authorization_code(self, code: str, client: Any) -> Code | None:
        return self.server.provider.codes.get(code)

    def delete_authorization_code(self, authorization_code: Code) -> None:
        del self.server.provider.codes[authorization_code.code]

    def authenticate_user(self, authorization_code: Code) -> Any:
        return self.server.provider.person


class _OpenId(OpenIDCode):
    def __init__(self, provider: Provider) -> None:
        super().__init__(require_nonce=True)
        self.provider = provider

    def resolve_client_private_key(self, client: Any) -> RSAKey:
        return self.provider.signing_key or self.provider.keys[-1]

    def get_encode_header(self, client: Any) -> dict[str, Any]:
        return {"alg": "RS256", "kid": self.resolve_client_private_key(client).kid}

    def get_client_claims(self, client: Any) -> dict[str, Any]:
        return {"iss": self.provider.issuer, "aud": [CLIENT_ID]}

    def exists_nonce(self, nonce: str, request: OAuth2Request) -> bool:
        return False

    def generate_user_info(self, user: Any, scope: str) -> Any:
        return {**user, **self.provider.bent}


class _Server(AuthorizationServer):
    def __init__(self, provider: Provider) -> None:
        super().__init__()
        self.provider = provider
        self.register_token_generator("default", BearerTokenGenerator(lambda **_: "provider-access-token"))
        self.register_grant(_CodeGrant, [CodeChallenge(required=True), _OpenId(provider)])

    def query_client(self, client_id: str) -> Any:
        return _Client(self.provider) if client_id == CLIENT_ID else None

    def save_token(self, token: Any, request: OAuth2Request) -> None:
        """Nobody asks for it again."""

    def send_signal(self, name: str, *args: Any, **kwargs: Any) -> None:
        """Nobody listens."""

    def create_oauth2_request(self, request: Any) -> Any:
        return request

    def handle_response(self, status: int, body: Any, headers: Any) -> Any:
        return status, body, dict(headers)


class _Handler(BaseHTTPRequestHandler):
    provider: Provider

    def do_GET(self) -> None:
        path = urlsplit(self.path)
        issuer = self.provider.issuer
        if path.path == "/.well-known/openid-configuration":
            self._answer(
                200,
                {
                    "issuer": issuer,
                    "authorization_endpoint": f"{issuer}/authorize",
                    "token_endpoint": f"{issuer}/token",
                    "jwks_uri": f"{issuer}/keys",
                    **self.provider.endpoints,
                },
            )
        elif path.path == "/keys":
            self.provider.key_requests += 1
            self._answer(200, self.provider.key_set())
        elif path.path == "/authorize":
            request = _Request("GET", dict(parse_qsl(path.query)), self.headers)
            server = _Server(self.provider)
            answered: Any = server.create_authorization_response(request, grant_user=self.provider.person)
            self._answer(*answered)
        else:
            self._answer(404, {})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"])).decode()
        request = _Request("POST", dict(parse_qsl(body)), self.headers)
        answered: Any = _Server(self.provider).create_token_response(request)
        self._answer(*answered)

    def _answer(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        text = json.dumps(body).encode() if isinstance(body, dict) else str(body or "").encode()
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: Any) -> None:
        """Tests are quiet."""


@contextmanager
def running_provider() -> Iterator[Provider]:
    provider = Provider()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"provider": provider}))
    provider.issuer = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield provider
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def query_of(url: str) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(url).query))


def with_query(url: str, **changed: str) -> str:
    return f"{url.partition('?')[0]}?{urlencode({**query_of(url), **changed})}"
