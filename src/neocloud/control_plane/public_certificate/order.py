# pyright: standard
"""Order one certificate from an authority by ACME (RFC 8555), which checks the names by HTTP (http-01).

The protocol is the library's, Certbot's own; `network` sends what it says.
"""

import asyncio
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from socket import socket
from typing import Any, TypeVar
from urllib.parse import urlsplit

from acme import challenges, client, crypto_util, errors, messages
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from josepy.jwk import JWKRSA

from neocloud.control_plane.public_certificate.http_check import answering
from neocloud.control_plane.public_certificate.issued import OrderFailed
from neocloud.control_plane.public_certificate.network import Network, check_origin, clean

ORDER_SECONDS = 180.0
ISSUE_SECONDS = 120.0
"""For the authority's check and its signature."""
HTTP_CODES = {"connection", "dns", "unauthorized", "incorrectResponse"}
CHECK_THE_NAME = "Check that the name leads to this machine and that its port 80 is open."
UNKNOWN_ACCOUNT = "accountDoesNotExist"
_T = TypeVar("_T")


@dataclass(frozen=True)
class Account:
    """An account at an authority."""

    directory: str
    email: str
    key: str
    """PEM."""
    url: str = ""
    """Its name at the authority; "" until it is registered."""


Listen = Callable[[], Sequence[socket]]
"""Returns sockets on which the authority's check arrives. Raises OrderFailed."""


def new_account(directory: str, email: str) -> Account:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return Account(directory, email, key.private_bytes(*form).decode())


def read_account(file: Path) -> Account | None:
    """Return what is kept there; None when that is nothing, or cannot be used.

    Raises OSError when that is not known, as on a disk that fails: another account would not be the one that
    the authority's limits and permissions are for.
    """
    with suppress(FileNotFoundError, ValueError, TypeError):
        found = Account(**json.loads(file.read_text()))
        serialization.load_pem_private_key(found.key.encode(), None)
        return found
    return None


async def order_chain(
    account: Account,
    names: Sequence[str],
    key: bytes,
    *,
    listen: Listen,
    show: Callable[[str], None],
    registered: Callable[[Account], None],
) -> str:
    """Return the chain of a new certificate for this key (PEM), as the authority sent it.

    `registered` is called when the account has changed. Raises OrderFailed, and what `registered` raises.
    """
    authority = _Authority(account, len(names))
    try:
        async with asyncio.timeout(ORDER_SECONDS):
            show(f"signing in to {authority.host}")
            found = await _in_thread(authority.sign_in)
            if found != account:
                registered(found)
            show(f"ordering from {authority.host}")
            answers = await _in_thread(lambda: authority.begin(crypto_util.make_csr(key, list(names))))
            async with answering(listen(), answers) if answers else nullcontext():
                show(f"{authority.host} checks {', '.join(names)}")
                return await _in_thread(authority.finish)
    except TimeoutError:
        raise OrderFailed(f"{authority.host} did not finish within {ORDER_SECONDS:.0f} s.") from None
    except OrderFailed:
        if authority.has_forgotten_us:
            registered(replace(account, url=""))
        raise
    finally:
        authority.close()


class _Authority:
    """A conversation with an authority. Its methods block, and raise OrderFailed."""

    def __init__(self, account: Account, names: int) -> None:
        """`names`: how many are ordered."""
        self.host = urlsplit(account.directory).netloc
        self.has_forgotten_us = False
        """Whether it does not know the account any more."""
        self._account = account
        private = serialization.load_pem_private_key(account.key.encode(), None)
        self._key = JWKRSA(key=private)
        self._network = Network(account.directory, self._key, names)
        self._challenges: list[tuple[messages.ChallengeBody, challenges.ChallengeResponse]] = []

    def close(self) -> None:
        """End the conversation, also one that a thread still waits in."""
        self._network.close()

    def sign_in(self) -> Account:
        """Return the account as it is registered."""
        return self._told(self._sign_in)

    def begin(self, request: bytes) -> Mapping[str, str]:
        """Order, and return the paths that the authority will fetch with what it expects there."""
        return self._told(lambda: self._begin(request))

    def finish(self) -> str:
        """Let the authority check the names, and return the chain that it signed."""
        return self._told(self._finish)

    def _sign_in(self) -> Account:
        directory = client.ClientV2.get_directory(self._account.directory, self._network)
        if any(name not in directory.to_partial_json() for name in ("newNonce", "newAccount", "newOrder")):
            raise OrderFailed(f"{self._account.directory} is not the directory of a certificate authority.")
        self._client = client.ClientV2(directory, self._network)
        if self._client.external_account_required():
            raise OrderFailed(
                f"{self.host} signs for accounts that it made elsewhere only (external account binding),"
                " which is not supported. Choose another authority:"
                " `neo config set acme-directory URL`."
            )
        if not self._account.url:
            self._account = replace(self._account, url=self._register())
        check_origin(self._account.directory, self._account.url)
        self._network.account = messages.RegistrationResource(
            uri=self._account.url, body=messages.Registration()
        )
        return self._account

    def _register(self) -> str:
        wanted = messages.NewRegistration.from_data(
            email=self._account.email or None, terms_of_service_agreed=True
        )
        try:
            return self._client.new_account(wanted).uri
        except errors.ConflictError as error:  # the key has an account there
            return error.location

    def _begin(self, request: bytes) -> Mapping[str, str]:
        self._order = self._client.new_order(request)
        answers: dict[str, str] = {}
        order: Any = self._order  # its stub has no type for them
        for each in order.authorizations:
            if each.body.status == messages.STATUS_VALID:
                continue
            found = [one for one in _challenges_of(each) if isinstance(one.chall, challenges.HTTP01)]
            if not found:
                name = clean(str(each.body.identifier.value))
                raise OrderFailed(
                    f"{self.host} does not check {name} by HTTP (http-01). Choose another authority."
                )
            response, content = found[0].chall.response_and_validation(self._key)
            answers[found[0].chall.path] = content
            self._challenges.append((found[0], response))
        return answers

    def _finish(self) -> str:
        for body, response in self._challenges:
            self._client.answer_challenge(body, response)
        deadline = datetime.now() + timedelta(seconds=ISSUE_SECONDS)  # as the library compares it
        order = self._client.poll_authorizations(self._order, deadline)
        return self._client.finalize_order(order, deadline).fullchain_pem

    def _told(self, work: Callable[[], _T]) -> _T:
        """Return what `work` does. Raises OrderFailed with the reason that the authority gave."""
        try:
            return work()
        except messages.Error as error:
            self.has_forgotten_us = error.code == UNKNOWN_ACCOUNT
            raise OrderFailed(self._refusal(error), self._network.retry_after) from error
        except errors.ValidationError as error:
            found = [one.error for each in error.failed_authzrs for one in _challenges_of(each) if one.error]
            raise OrderFailed(" ".join(map(self._refusal, found))) from error
        except errors.IssuanceError as error:
            raise OrderFailed(self._refusal(error.error)) from error
        except errors.TimeoutError as error:
            raise OrderFailed(f"{self.host} did not finish within {ISSUE_SECONDS:.0f} s.") from error
        except OrderFailed:
            raise
        except Exception as error:  # a border: whatever an answer does to the library
            what = clean(f"{type(error).__name__}: {error}")
            raise OrderFailed(f"An answer of {self.host} cannot be understood ({what}).") from error

    def _refusal(self, error: messages.Error) -> str:
        code = str(error.code or "error")
        said = clean(f"{self.host} refused ({code}): {error.detail or error.typ}").rstrip(".")
        return f"{said}. {CHECK_THE_NAME}" if code in HTTP_CODES else f"{said}."


def _challenges_of(authorization: messages.AuthorizationResource) -> Sequence[messages.ChallengeBody]:
    found: Any = authorization.body.challenges  # mistyped there
    return found


async def _in_thread(work: Callable[[], _T]) -> _T:
    """Return what `work` returns. The thread does not keep a program from ending."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[_T] = loop.create_future()

    def finish(set_result: Callable[[Any], None], result: object) -> None:
        if not future.done():
            set_result(result)

    def run() -> None:
        try:
            done = future.set_result, work()
        except OrderFailed as error:
            done = future.set_exception, error
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(finish, *done)

    threading.Thread(target=run, name="acme", daemon=True).start()
    return await future
