"""One connection to a cloud: call any method of the contract, page through lists, wait for operations.

A call is sent with a fresh token and an idempotency key. When the server refuses the token, a new one is
fetched and the call repeated once; when it answers UNAVAILABLE, the call is repeated a few times. All these
calls have the same key, so a change never happens twice. A server that has answered this command and then
answers no more is waited for, as is one of this machine that has a supervisor: it is being started again. A
call names the version of this code and the oldest release that it works with, so that a server of another
release refuses it before it does anything.
"""

import json
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import grpc

from neocloud import __version__
from neocloud.client.credentials import (
    Credentials,
    ExchangedToken,
    Invoke,
    TokenSource,
    cache_file_for,
    read_credentials,
)
from neocloud.client.errors import ClientError, ReleasesApart, code_name, from_rpc_error, trailer
from neocloud.client.profiles import Profile, token_folder
from neocloud.client.sessions import SessionToken
from neocloud.core import contract, releases
from neocloud.core.announcements import Announcement
from neocloud.core.announcements import read as read_announcement
from neocloud.core.child_process import POLL_SECONDS, Child, Deaths, deaths_in

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor
    from google.protobuf.message import Message

    from neocloud.messages.nebius.common.v1 import Operation

CALL_TIMEOUT_SECONDS = 60.0
RETRY_SECONDS = (0.2, 0.5, 1.0)
"""The pauses before a call is repeated that a running server answered with UNAVAILABLE."""
RESTART_SECONDS = 60.0
"""How long a command waits for a server that is being started again."""
UNANSWERED_SECONDS = 0.25
"""The pause before a call is repeated that nothing answered."""
CRASH_LOOP_DEATHS = 3
"""So many short lives in a row, the last one ended by an error: no further one is waited for."""
PAGE_SIZE = 200
GET_OPERATION = "nebius.common.v1.OperationService/Get"
CHANNEL_OPTIONS = (
    # The API listens on loopback: a proxy meant for the internet must not see it.
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    # A server that starts again is found at once.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
)

Request: TypeAlias = "Mapping[str, object] | Message"
"""A message, or a mapping in the contract's JSON form (either spelling of field names)."""


@dataclass
class Client:
    channel: grpc.Channel
    endpoint: str
    tokens: TokenSource
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    version: str = __version__
    """The version that calls name; "" for none, which works with a server of any release."""
    home: Path | None = None
    """The state folder of a cloud of this machine."""
    _has_answered: bool = False

    def call(
        self,
        path: str,
        request: "Request | None" = None,
        *,
        reset_mask: Sequence[str] = (),
        timeout_seconds: float = CALL_TIMEOUT_SECONDS,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Call `package.Service/Method`.

        `reset_mask` names fields to set although their new value is the default; `headers` go with the call.
        """
        message = self._message(path, request)
        metadata = [("x-idempotency-key", str(uuid.uuid4())), *(headers or {}).items()]
        if reset_mask:
            metadata.append(("x-resetmask", ",".join(reset_mask)))
        pauses = iter(RETRY_SECONDS)
        has_new_token = False
        give_up_at: float | None = None
        while True:
            try:
                answer = self._send(path, message, metadata, timeout_seconds)
                self._has_answered = True
                return answer
            except ClientError as error:
                if error.is_unanswered and self._is_restarting():
                    give_up_at = give_up_at or self._begin_wait()
                    if self.clock() < give_up_at:
                        self.sleep(UNANSWERED_SECONDS)
                        continue
                self._has_answered |= not error.is_unanswered
                if error.code == "UNAUTHENTICATED" and not has_new_token:
                    self.tokens.forget()
                    has_new_token = True
                    continue
                pause = next(pauses, None) if error.may_be_repeated else None
                if pause is None:
                    raise
            self.sleep(pause)

    def list_all(self, path: str, request: "Request | None" = None) -> Iterator[Any]:
        """Iterate over all items of a paged list, fetched on demand."""
        message = self._message(path, request)
        has_pages = "page_token" in message.DESCRIPTOR.fields_by_name
        if has_pages and not message.page_size:
            message.page_size = PAGE_SIZE
        while True:
            response = self.call(path, message)
            yield from getattr(response, items_field(response.DESCRIPTOR))
            if not has_pages or not response.next_page_token:
                return
            message.page_token = response.next_page_token

    def wait(
        self,
        operation: "Operation",
        *,
        on_progress: "Callable[[Operation], None]" = lambda operation: None,
        timeout_seconds: float = 3600.0,
    ) -> "Operation":
        """Poll until the operation is finished; raises ClientError if it failed.

        `on_progress` is called with each result.
        """
        current: Any = operation  # its status, a google.rpc.Status, has no type
        deadline = self.clock() + timeout_seconds
        delay = 0.05
        while True:
            on_progress(current)
            if current.HasField("status"):
                break
            if self.clock() > deadline:
                raise ClientError(
                    "DEADLINE_EXCEEDED",
                    f"Operation {current.id} has not finished in {timeout_seconds:.0f} s",
                    f"It continues in the cloud; check {current.resource_id} later",
                )
            self.sleep(delay)
            delay = min(delay * 1.5, 0.5)
            current = self.call(GET_OPERATION, {"id": current.id})
        if current.status.code != 0:
            raise ClientError(code_name(current.status.code), current.status.message)
        return current

    def _is_restarting(self) -> bool:
        """Return whether a server that does not answer may answer soon."""
        if self.home is None:
            return self._has_answered
        return _is_supervised(self.home)

    def _begin_wait(self) -> float:
        """Say that the server is waited for; return until when."""
        sys.stderr.write(f"{self.endpoint} does not answer; waiting up to {RESTART_SECONDS:.0f} s for it.\n")
        return self.clock() + RESTART_SECONDS

    def close(self) -> None:
        self.channel.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _message(self, path: str, request: "Request | None") -> Any:
        try:
            input_class = contract.method(path).input
        except contract.ContractUnavailable as error:
            raise ClientError("FAILED_PRECONDITION", str(error)) from error
        if request is None:
            return input_class()
        if isinstance(request, Mapping):
            try:
                return contract.from_dict(input_class, {**request})
            except contract.ApiError as error:
                raise ClientError("INVALID_ARGUMENT", error.message) from error
        return request

    def _send(
        self, path: str, message: "Message", metadata: list[tuple[str, str]], timeout_seconds: float
    ) -> object:
        bearer = ("authorization", f"Bearer {self.tokens.token()}")
        sent = [*metadata, bearer]
        return invoke(self.channel, self.endpoint, path, message, sent, timeout_seconds, self.version)


def invoke(
    channel: grpc.Channel,
    endpoint: str,
    path: str,
    message: "Message",
    metadata: Sequence[tuple[str, str]] = (),
    timeout_seconds: float = CALL_TIMEOUT_SECONDS,
    version: str = __version__,
) -> Any:
    """Make one call; gRPC errors become ClientError. `version` is this client's; "" names none."""
    method = contract.method(path)
    unary = channel.unary_unary(
        f"/{method.path}",
        request_serializer=method.input.SerializeToString,
        response_deserializer=method.output.FromString,
    )
    sent = (*metadata, *releases.stated(version))
    try:
        answer, ended = unary.with_call(message, metadata=sent, timeout=timeout_seconds)
    except grpc.RpcError as error:
        if version and isinstance(error, grpc.Call):
            _check_release(version, error)
        raise from_rpc_error(error, endpoint) from error
    if version:
        _check_release(version, ended)
    return answer


def _check_release(version: str, ended: grpc.Call) -> None:
    """Raise ReleasesApart when the server that answered does not work with this version.

    A server of ours has refused such a call already; one that does not name its version is not checked.
    """
    found = trailer(ended, releases.HEADER)
    refusal = releases.refusal(version, found) if isinstance(found, str) else None
    if refusal is not None:
        raise ReleasesApart("FAILED_PRECONDITION", refusal.message, refusal.next_step)


def connect(profile: Profile, version: str = __version__) -> Client:
    """Open a connection for a profile. Nothing is sent yet. With `version` "", calls name none."""
    endpoint = live_endpoint(profile)
    if profile.session_file:
        channel = open_channel(endpoint, profile.ca_file)
        tokens = SessionToken(Path(profile.session_file), invoker(channel, endpoint, version))
        client = Client(channel, endpoint, tokens, version=version)
    else:
        credentials = read_credentials(Path(profile.credentials_file))
        client = connect_as(credentials, endpoint, profile.ca_file, version)
    client.home = Path(profile.home) if profile.home else None
    return client


def open_channel(endpoint: str, ca_file: str = "") -> grpc.Channel:
    """Open a channel, with TLS if there are certificates to trust."""
    if not ca_file:
        return grpc.insecure_channel(endpoint, options=CHANNEL_OPTIONS)
    try:
        roots = Path(ca_file).read_bytes()
    except OSError as error:
        raise ClientError(
            "NOT_FOUND", f"{ca_file} cannot be read: {error.strerror}", "Name another file"
        ) from error
    return grpc.secure_channel(endpoint, grpc.ssl_channel_credentials(roots), options=CHANNEL_OPTIONS)


def invoker(channel: grpc.Channel, endpoint: str, version: str = __version__) -> Invoke:
    """Return a function that calls without a token: (path, request) -> response."""
    return lambda path, message: invoke(channel, endpoint, path, message, version=version)


def connect_as(
    credentials: Credentials, endpoint: str, ca_file: str = "", version: str = __version__
) -> Client:
    channel = open_channel(endpoint, ca_file)
    exchange = invoker(channel, endpoint, version)
    tokens = ExchangedToken(credentials, exchange, cache_file_for(credentials, endpoint, token_folder()))
    return Client(channel, endpoint, tokens, version=version)


def live_endpoint(profile: Profile) -> str:
    """Return the endpoint; a cloud on this machine records its present one in its state folder, or announces
    it to other accounts."""
    if profile.announcement:
        return announced(profile).grpc
    if not profile.home:
        return profile.endpoint
    wait_for_restart(Path(profile.home))
    try:
        return json.loads((Path(profile.home) / "server.json").read_text())["grpc"]
    except FileNotFoundError as error:
        raise ClientError(
            "UNAVAILABLE", f"The cloud in {profile.home} is not running", "Start it with `neo up`"
        ) from error
    except (OSError, ValueError, KeyError):
        return profile.endpoint


def announced(profile: Profile) -> Announcement:
    """Return where a cloud of another account of this machine is reached now. Raises ClientError."""
    found = read_announcement(Path(profile.announcement))
    if found is None:
        raise ClientError(
            "UNAVAILABLE",
            f"The cloud of profile {profile.name!r} does not run on this machine",
            "Ask its operator to start it, or sign in again with `neo login`",
        )
    return found


def wait_for_restart(
    home: Path, sleep: Callable[[float], None] = time.sleep, clock: Callable[[], float] = time.monotonic
) -> None:
    """Wait for the server of a state folder while its supervisor is starting it, as after its death.

    Returns immediately for a server that is ready, or that has no supervisor. Raises ClientError for one that
    has ended with an error again and again; one that is starting may still get ready.
    """
    if _is_ready(home) or not _is_supervised(home):
        return
    if not _crash_loop(home) or _server(home).find() is not None:
        sys.stderr.write(f"The cloud in {home} is not ready; waiting up to {RESTART_SECONDS:.0f} s for it.\n")
    began = clock()
    seen: Deaths | None = None
    while not _is_ready(home) and _is_supervised(home) and clock() < began + RESTART_SECONDS:
        deaths = _crash_loop(home) if _server(home).find() is None else None
        if deaths and deaths == seen:  # twice: a process that was just started is recorded a moment later
            raise ClientError(
                "UNAVAILABLE",
                f"The server of the cloud in {home} has ended {deaths.short_lives} times in a row, the last"
                f" time with: {deaths.said.removeprefix('neocloud: ').rstrip('.')}",
                f"Its log is {_server(home).log_file}; after a change, `neo up` starts it without a pause",
            )
        seen = deaths
        sleep(POLL_SECONDS)


def _crash_loop(home: Path) -> Deaths | None:
    """Return the deaths of a server that ends with an error again and again; None for any other."""
    deaths = deaths_in(_server(home).record())
    return deaths if deaths.short_lives >= CRASH_LOOP_DEATHS and deaths.said else None


def _is_supervised(home: Path) -> bool:
    """Return whether a server that has died is started again: a supervisor runs, or its successor."""
    log = home / "log" / "supervisor.log"
    return any(Child(name, log, home / f"{name}.json").find() for name in ("supervisor", "successor"))


def _server(home: Path) -> Child:
    return Child("server", home / "log" / "server.log", home / "server-process.json")


def _is_ready(home: Path) -> bool:
    """Return whether the supervised server that runs now is the one that announced itself."""
    server = _server(home).find()
    try:
        announced = json.loads((home / "server.json").read_text())
        return server is not None and announced["pid"] == server.pid
    except (OSError, ValueError, KeyError, TypeError):
        return False


def items_field(response: "Descriptor") -> str:
    """Return the repeated field of a list response: usually `items`, sometimes another."""
    return next(field.name for field in response.fields if field.message_type and field.is_repeated)
