"""Client of a cloud's OpenAI-compatible API, with the profile's own token.

A token is sent only to the gateway of its own cloud. For any other address the caller provides a key.
"""

import json
import os
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from neocloud.client.connection import announced, connect, wait_for_restart
from neocloud.client.credentials import StaticToken, TokenSource
from neocloud.client.errors import ClientError
from neocloud.client.profiles import Profile
from neocloud.client.trust import verified_context
from neocloud.core.contract.json_codec import Json

KEY_VARIABLE = "OPENAI_API_KEY"
WAIT_HEADER = "x-neocloud-wait"
"""Header with the seconds that a request may wait for a model without replicas to start."""
WAIT_SECONDS = 300
TIMEOUT = httpx.Timeout(600, connect=10)
_CODES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ABORTED",
    413: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    501: "UNIMPLEMENTED",
}


@dataclass
class Gateway:
    """One connection, usable by several threads concurrently."""

    base_url: str
    """With the version: http://127.0.0.1:8900/v1"""
    tokens: TokenSource
    http: httpx.Client
    project: str = ""
    """Project of the requests; "": the gateway chooses, or answers with an error."""

    def get(self, path: str) -> Any:
        return self._checked("GET", path, None)

    def post(self, path: str, body: Mapping[str, object]) -> Any:
        """Return the answer as JSON. Raises ClientError with the gateway's message."""
        return self._checked("POST", path, body)

    def delete(self, path: str) -> Any:
        return self._checked("DELETE", path, None)

    def upload(self, path: Path, purpose: str) -> str:
        """Upload a file and return its id. Raises ClientError."""
        try:
            with path.open("rb") as file:
                answer = self.http.post(
                    f"{self.base_url}/files",
                    headers=self.headers(),
                    data={"purpose": purpose},
                    files={"file": (path.name, file)},
                )
        except httpx.HTTPError as error:
            raise ClientError(
                "UNAVAILABLE",
                f"The gateway at {self.base_url} did not accept the file: {error}",
                "Try again; see `neo status`",
            ) from error
        if answer.is_error:
            said = _refusal(answer, _error_body(answer.text))
            raise ClientError(said.code, f"The gateway refused {path.name}: {said.message}", said.next_step)
        return answer.json()["id"]

    def stream(self, path: str, body: Mapping[str, object]) -> Iterator[Any]:
        """Iterate over the chunks of a streamed answer as they arrive."""
        with self._sent("POST", path, {**body, "stream": True}) as response:
            for line in response.iter_lines():
                data = line.removeprefix("data: ")
                if data == line or data == "[DONE]":
                    continue
                chunk = _parsed(data, self.base_url)
                if isinstance(chunk, dict) and "error" in chunk:
                    raise _refusal(response, chunk)
                yield chunk

    def headers(self) -> dict[str, str]:
        """Return the headers that identify the caller and the project."""
        headers = {"authorization": f"Bearer {self.tokens.token()}"}
        return headers | ({"openai-project": self.project} if self.project else {})

    def close(self) -> None:
        """Close the connection, which also ends calls in other threads."""
        self.http.close()

    def __enter__(self) -> "Gateway":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _checked(self, method: str, path: str, body: Mapping[str, object] | None) -> Json:
        with self._sent(method, path, body) as response:
            response.read()
            return _parsed(response.text, self.base_url)

    @contextmanager
    def _sent(
        self, method: str, path: str, body: Mapping[str, object] | None
    ) -> Generator[httpx.Response, None, None]:
        """Send a request; one 401 is retried with a new token. Raises ClientError for an error answer."""
        for attempt in (1, 2):
            headers = {**self.headers(), WAIT_HEADER: str(WAIT_SECONDS)}
            url = f"{self.base_url}/{path.lstrip('/')}"
            try:
                with self.http.stream(method, url, json=body, headers=headers) as response:
                    if response.status_code == 401 and attempt == 1:
                        self.tokens.forget()
                        continue
                    if response.is_error:
                        response.read()
                        raise _refusal(response, _error_body(response.text))
                    yield response
                    return
            except httpx.HTTPError as error:
                why = str(error) or type(error).__name__
                raise ClientError(
                    "UNAVAILABLE",
                    f"The gateway at {self.base_url} does not answer: {why}",
                    "Check that it is running with `neo status`",
                ) from error


def open_gateway(profile: Profile, project: str = "") -> Gateway:
    """Open the gateway of the profile's cloud, in this project or the profile's."""
    base_url = f"{gateway_address(profile)}/v1"
    http = _http(profile.ca_file if profile.gateway_endpoint else "")
    return Gateway(base_url, connect(profile).tokens, http, project or profile.project_id)


def open_api(url: str) -> Gateway:
    """Open any OpenAI-compatible API, with the key in OPENAI_API_KEY."""
    key = os.environ.get(KEY_VARIABLE, "")
    if not key:
        raise ClientError(
            "UNAUTHENTICATED",
            f"There is no key for {url}: a profile's token is sent to its own cloud only",
            f"Set {KEY_VARIABLE} to the key of that API",
        )
    return Gateway(url.rstrip("/"), StaticToken(key), _http())


def _http(ca_file: str = "") -> httpx.Client:
    """Return a client that trusts the authorities in the file, or the system's."""
    verify = verified_context(ca_file) if ca_file else True
    limits = httpx.Limits(max_connections=256)
    return httpx.Client(timeout=TIMEOUT, trust_env=False, limits=limits, verify=verify)


def gateway_address(profile: Profile) -> str:
    """Return the gateway's address, which a cloud on this machine records in its state folder."""
    if profile.gateway_endpoint:
        return profile.gateway_endpoint
    if profile.announcement:
        return _gateway_url(announced(profile).gateway, profile.name)
    if not profile.home:
        raise ClientError(
            "INVALID_ARGUMENT",
            f"Profile {profile.name!r} belongs to a cloud on another machine with an unknown gateway",
            "Sign in with its URL (neo login https://HOST:PORT), or give that of the gateway"
            f" (https://HOST/v1), with its key in {KEY_VARIABLE}",
        )
    wait_for_restart(Path(profile.home))
    try:
        address = json.loads((Path(profile.home) / "server.json").read_text()).get("gateway", "")
    except (OSError, ValueError) as error:
        raise ClientError(
            "UNAVAILABLE", f"The cloud in {profile.home} is not running", "Start it with `neo up`"
        ) from error
    return _gateway_url(address, profile.name)


def _gateway_url(address: str, profile_name: str) -> str:
    if not address:
        raise ClientError(
            "UNAVAILABLE",
            f"The cloud of profile {profile_name!r} has no gateway: it is an emulator, which serves no models"
            " and accepts no files",
            "Use a real cloud: `neo up` without --emulator, with a separate --home",
        )
    return address if "://" in address else f"http://{address}"


def _parsed(text: str, base_url: str) -> Json:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ClientError(
            "INTERNAL",
            f"{base_url} answered without valid JSON: {text[:200]!r}",
            "Is it an OpenAI-compatible API?",
        ) from error


def _error_body(text: str) -> Json:
    try:
        return json.loads(text)
    except ValueError:
        return {}


def _field(document: Json, name: str) -> Json:
    return document.get(name) if isinstance(document, dict) else None


def _refusal(response: httpx.Response, body: Json) -> ClientError:
    error = _field(body, "error")
    message = _field(error, "message") if isinstance(error, dict) else error
    retry = response.headers.get("retry-after")
    code = _CODES.get(response.status_code, "UNAVAILABLE")
    return ClientError(
        code,
        str(message or f"The API answered {response.status_code} {response.reason_phrase}"),
        f"Try again in {retry} s" if retry else "",
    )
