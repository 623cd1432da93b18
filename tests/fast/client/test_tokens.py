"""Tokens by exchange of a signed assertion (RFC 8693): asked for once, renewed in time, never readable by
others.
"""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from neocloud.client.credentials import Credentials, ExchangedToken, cache_file_for
from neocloud.core import contract

START = datetime(2026, 11, 1, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@pytest.fixture
def credentials(key: rsa.RSAPrivateKey) -> Credentials:
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Credentials("serviceaccount-e00s", "publickey-e00k", pem.decode())


class FakeExchange:
    """The server's side: counts, and keeps what it was sent."""

    def __init__(self) -> None:
        self.requests: list[Any] = []

    def __call__(self, path: str, request: Any) -> Any:
        assert path == "nebius.iam.v1.TokenExchangeService/Exchange"
        self.requests.append(request)
        answer = contract.method(path).output
        return answer(access_token=f"token-{len(self.requests)}", token_type="Bearer", expires_in=600)


class FakeTime:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now


def source(credentials: Credentials, cache: Path | None) -> tuple[ExchangedToken, FakeExchange, FakeTime]:
    exchange, time = FakeExchange(), FakeTime()
    return ExchangedToken(credentials, exchange, cache, time), exchange, time


def test_the_assertion_is_what_the_server_expects(credentials: Credentials, key: rsa.RSAPrivateKey) -> None:
    tokens, exchange, _ = source(credentials, None)
    assert tokens.token() == "token-1"
    [request] = exchange.requests
    assert request.grant_type == "urn:ietf:params:oauth:grant-type:token-exchange"
    assert request.subject_token_type == "urn:ietf:params:oauth:token-type:jwt"
    header = jwt.get_unverified_header(request.subject_token)
    assert (header["alg"], header["kid"]) == ("RS256", "publickey-e00k")
    claims = jwt.decode(
        request.subject_token,
        key.public_key(),
        algorithms=["RS256"],
        audience="neocloud",
        options={"verify_exp": False, "verify_iat": False},
    )
    assert claims["iss"] == claims["sub"] == "serviceaccount-e00s"
    assert claims["exp"] - claims["iat"] <= 600


def test_a_token_is_used_until_a_minute_before_it_expires(credentials: Credentials) -> None:
    tokens, exchange, time = source(credentials, None)
    tokens.token()
    time.now += timedelta(seconds=530)
    assert tokens.token() == "token-1"
    time.now += timedelta(seconds=20)
    assert tokens.token() == "token-2"
    assert len(exchange.requests) == 2


def test_another_process_takes_the_token_from_the_file(credentials: Credentials, tmp_path: Path) -> None:
    cache = tmp_path / "tokens" / "t.json"
    first, _, _ = source(credentials, cache)
    first.token()
    second, exchange, _ = source(credentials, cache)
    assert second.token() == "token-1"
    assert not exchange.requests
    assert cache.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", '{"token": "t", "expires_at": "never"}', '{"expires_at": 3}']
)
def test_a_damaged_token_file_is_replaced(credentials: Credentials, tmp_path: Path, content: str) -> None:
    cache = tmp_path / "t.json"
    cache.write_text(content)
    tokens, exchange, _ = source(credentials, cache)
    assert tokens.token() == "token-1"
    assert len(exchange.requests) == 1


def test_a_refused_token_is_forgotten_on_disk_too(credentials: Credentials, tmp_path: Path) -> None:
    cache = tmp_path / "t.json"
    tokens, _, _ = source(credentials, cache)
    tokens.token()
    tokens.forget()
    assert not cache.exists()
    assert tokens.token() == "token-2"


def test_a_folder_that_cannot_be_written_costs_only_time(credentials: Credentials, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    tokens, _, _ = source(credentials, tmp_path / "file" / "t.json")
    assert tokens.token() == "token-1"


def test_token_files_are_apart_by_account_key_and_endpoint(credentials: Credentials, tmp_path: Path) -> None:
    other = Credentials("serviceaccount-e00s", "publickey-e00other", credentials.private_key)
    files = {
        cache_file_for(credentials, "a:1", tmp_path),
        cache_file_for(credentials, "b:1", tmp_path),
        cache_file_for(other, "a:1", tmp_path),
    }
    assert len(files) == 3


def test_neither_the_key_nor_a_token_is_in_a_representation(credentials: Credentials) -> None:
    tokens, _, _ = source(credentials, None)
    value = tokens.token()
    assert value not in repr(tokens)
    assert "PRIVATE KEY" not in repr(credentials) + repr(tokens)
