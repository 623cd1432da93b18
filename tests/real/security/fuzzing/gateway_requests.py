"""Requests to any route of the gateway, right at first and then damaged, as Hypothesis strategies.

The heads are proper HTTP/1.1, so that they come through to the gateway's own code; `raw_http` has the others.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from hypothesis import strategies as st

from neocloud.model_gateway.api import fields
from tests.real.security.fuzzing import values

METHODS = ("GET", "POST", "DELETE", "PUT", "PATCH", "HEAD", "OPTIONS")
BOUNDARY = "b0undary"
TURNS = [{"role": "user", "content": "two words"}]
BODIES: Mapping[str, Mapping[str, Any]] = {
    fields.CHAT: {"model": "bank", "messages": TURNS, "max_tokens": 4},
    fields.COMPLETIONS: {"model": "bank", "prompt": ["a", "b"], "max_tokens": 4},
    fields.EMBEDDINGS: {"model": "vectors", "input": ["a", "b"]},
    fields.RERANK: {"model": "vectors", "query": "a", "documents": ["a", {"text": "b"}], "top_n": 1},
    fields.RESPONSES: {"model": "bank", "input": TURNS, "max_output_tokens": 4},
    "/v1/batches": {"input_file_id": "", "endpoint": fields.CHAT, "completion_window": "24h"},
    "/v1/fine_tuning/jobs": {"model": "bank", "training_file": "", "hyperparameters": {"n_epochs": 1}},
    "/chat/session": {"key": "key-a"},
    "/chat/v1/chat/completions": {"model": "bank", "messages": TURNS},
}
"""A valid one by path, except for the ids of files."""
PARTS = (
    {"type": "text", "text": "a"},
    {"type": "image_url", "image_url": {"url": "http://169.254.169.254/latest"}},
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
    {"type": "input_file", "file_url": "file:///etc/passwd"},
    {"type": "video_url", "video_url": {"url": "https://[::1]:a/"}},
)
WAITS = ("0", "0.01", "nan", "inf", "-1", "1e999", "0x1", "9" * 5000, "")
HOSTS = (
    "localhost",
    "localhost:b",
    "a:b",
    "[",
    "localhost:99999999",
    "[::1",
    "",
    "a\xff",
    "localhost:" + "9" * 5000,
)
ORIGINS = ("http://localhost", "http://[", "null", "", "http://a:b", "\xff", "//" * 500)
RANGES = (
    "bytes=0-",
    "bytes=-",
    "bytes=a-b",
    "bytes=9-1",
    "bytes=-99999999999999999999",
    "bytes=" + "0-0," * 3000,
)
LIMITS = ("1", "0", "-1", "9" * 5000, "²", "١", "1e3", "", " 1")


@dataclass(frozen=True)
class Reachable:
    """The names that a caller can use."""

    keys: Sequence[str]
    ids: Sequence[str]
    """Ids of files, batches and jobs: the caller's own, and those of another tenant."""
    cookie: str
    """Cookie of somebody who is signed in at the page."""


@dataclass(frozen=True)
class Request:
    method: str
    target: str
    headers: Sequence[tuple[str, str]]
    body: bytes = field(repr=False)

    def encoded(self) -> bytes:
        lines = [f"{self.method} {self.target} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in self.headers]
        lines += [f"Content-Length: {len(self.body)}", "Connection: close", "", ""]
        return "\r\n".join(lines).encode("latin-1") + self.body


@st.composite
def requests(draw: st.DrawFn, method: str, path: str, reachable: Reachable) -> Request:
    """One request to the route; rarely by a method that it does not take."""
    if draw(st.integers(0, 19)) == 0:
        method = draw(st.sampled_from(METHODS))
    is_upload = method == "POST" and path == "/v1/files"
    body, kind = draw(uploads() if is_upload else bodies(method, path, reachable))
    return Request(method, draw(targets(path, reachable)), draw(headers(reachable, kind)), body)


@st.composite
def targets(draw: st.DrawFn, path: str, reachable: Reachable) -> str:
    """The path with its parameters filled in, and now and then a query."""
    names = st.one_of(st.sampled_from(reachable.ids), st.sampled_from(reachable.ids), _short())
    while "{" in path:
        before, _, rest = path.partition("{")
        path = before + quote(draw(names), safe="") + rest.partition("}")[2]
    if draw(st.integers(0, 2)):
        return path
    after = st.one_of(st.sampled_from(reachable.ids), _short())
    known = {
        "limit": st.sampled_from(LIMITS),
        "order": st.sampled_from(("asc", "desc", "x", "")),
        "after": after,
        "purpose": st.sampled_from(("batch", "fine-tune", "x", "")),
        "metadata[a]": _short(),
    }
    names_of = st.lists(st.sampled_from(sorted(known)), max_size=4)
    pairs = [f"{name}={quote(draw(known[name]))}" for name in draw(names_of)]
    return path + "?" + "&".join(pairs + draw(st.sampled_from(([], ["%ff=%00"], ["&&=;"], ["a"] * 2000))))


@st.composite
def headers(draw: st.DrawFn, reachable: Reachable, kind: str) -> list[tuple[str, str]]:
    """Mostly a key that is known; and what else the gateway reads, with odd contents."""
    key = draw(st.sampled_from(reachable.keys))
    odd_keys = (f"bearer  {key}\xa0", f"Bearer {key}\x85", f"Bearer\t{key}", "Bearer \xff\xe9", "Basic a2V5")
    keys = (*(f"Bearer {key}",) * 12, *odd_keys, "Bearer", "", "Bearer " + "x" * 20_000)
    printable = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=30)
    projects = st.one_of(st.sampled_from(("project-a", "project-b", "..", "", "\xe9", "x" * 5000)), printable)
    found = [("Host", draw(_mostly("localhost", HOSTS)))]
    found += [("Authorization", draw(st.sampled_from(keys)))]
    found += [
        ("Content-Type", draw(_mostly(kind, ("", "\xff", "multipart/form-data", "text/html; charset=x"))))
    ]
    optional = {
        "OpenAI-Project": projects,
        "x-neocloud-wait": st.one_of(st.sampled_from(WAITS), printable.filter(_is_short_wait)),
        "Origin": st.sampled_from(ORIGINS),
        "Cookie": st.sampled_from((f"neocloud_chat_80={reachable.cookie}", "a", "=;" * 999, "\xff=\xfe")),
        "Range": st.sampled_from(RANGES),
        "If-Range": printable,
        "If-None-Match": printable,
        "X-Forwarded-For": st.sampled_from(("127.0.0.1", "\xff", "," * 999)),
        "Accept-Encoding": printable,
        "x-request-id": printable,
    }
    for name in draw(st.lists(st.sampled_from(sorted(optional)), max_size=3)):
        found.append((name, draw(optional[name])))
    is_of_page = draw(st.integers(0, 3)) == 0
    if is_of_page:
        found += [("Cookie", f"neocloud_chat_80={reachable.cookie}"), ("Origin", "http://localhost")]
    if not is_of_page and draw(st.integers(0, 15)) == 0:
        found += [(f"X-{number}", "y") for number in range(draw(st.sampled_from((100, 3000))))]
    return found


@st.composite
def bodies(draw: st.DrawFn, method: str, path: str, reachable: Reachable) -> tuple[bytes, str]:
    """JSON with values of other types in some places; or none at all."""
    kind = "application/json"
    content = _as_sent(draw, BODIES.get(path, {}), reachable)
    choice = draw(st.integers(0, 11))
    if method == "GET" and choice < 10:
        return b"", kind
    if choice == 0:
        return draw(st.one_of(values.nested_json().map(str.encode), st.binary(max_size=40))), kind
    if choice == 1:
        return draw(st.sampled_from(_ODD_TEXTS)), kind
    if choice == 2 and content:
        whole = values.json_text(content)
        return whole[: draw(st.integers(0, len(whole)))], kind
    for _ in range(draw(st.integers(0, 3))):
        _damage(draw, path, content)
    return values.json_text(content), kind


_ODD_TEXTS = (
    b"",
    b"\xef\xbb\xbf{}",
    b'{"model": "\\ud800"}',
    b'{"model": "bank", "model": 1}',
    '{"model": "bank"}'.encode("utf-16"),
    b'{"model": "\xff"}',
    b'{"model": NaN}',
    b'{"model": 1e999999}',
    b'{"model": ' + b"9" * 5000 + b"}",
    b"[" + b"{}," * 600_000 + b"{}]",
    b'{"a":' * 20_000,
    b'"' + b"\\" * 1_000_001,
)


def _as_sent(draw: st.DrawFn, template: Mapping[str, Any], reachable: Reachable) -> dict[str, Any]:
    content = json.loads(json.dumps(template))
    for name in ("input_file_id", "training_file"):
        if name in content:
            content[name] = draw(st.sampled_from(reachable.ids))
    return content


def _damage(draw: st.DrawFn, path: str, content: dict[str, Any]) -> None:
    """Change one thing somewhere, or add a field that the path knows or that is the operator's."""
    known = sorted(fields.ALLOWED.get(path.removeprefix("/chat"), ()))
    choice = draw(st.integers(0, 3))
    if choice == 0 and known:
        names = st.one_of(st.sampled_from(known), st.sampled_from(sorted(fields.OPERATORS)))
        content[draw(names)] = draw(values.json_values())
    elif choice == 1:
        place: Any = content
        while isinstance(place, dict | list) and place:
            spots = sorted(place) if isinstance(place, dict) else range(len(place))
            spot = draw(st.sampled_from(spots))
            if not isinstance(place[spot], dict | list) or draw(st.integers(0, 2)) == 0:
                place[spot] = draw(values.json_values())
                return
            place = place[spot]
    elif choice == 2 and ("messages" in content or "input" in content):
        parts = draw(st.lists(st.one_of(st.sampled_from(PARTS), values.json_values()), max_size=3))
        name = "messages" if "messages" in content else "input"
        content[name] = [{"role": "user", "content": parts}] * draw(st.sampled_from((1, 2, 300)))
    elif choice == 3:
        name = draw(st.sampled_from(("model", "prompt", "input", "stream", "n", "metadata", "stop", "tools")))
        content[name] = draw(
            st.one_of(values.json_values(), st.sampled_from((True, ["a"] * 3000, [1] * 50_000)))
        )


@st.composite
def uploads(draw: st.DrawFn) -> tuple[bytes, str]:
    """A file as browsers send it, and then cut, mixed up or made of odd parts."""
    line = json.dumps({"custom_id": "1", "method": "POST", "url": fields.CHAT, "body": BODIES[fields.CHAT]})
    contents = (line.encode(), b"", b"\0" * 100_000, b"\xff\xfe", b"[" * 50_000, (line + "\n").encode() * 300)
    content = draw(st.one_of(st.sampled_from(contents), st.binary(max_size=60)))
    name = draw(st.sampled_from(("f.jsonl", "", "../../x", 'a"b', "é" * 300, "\r\nX: y", "%00", "\0")))
    purpose = draw(_mostly("batch", ("fine-tune", "", "x", "\0", "y" * 100_000)))
    parts = [_part('name="purpose"', purpose.encode())]
    parts += [_part(f'name="file"; filename="{name}"', content)]
    if draw(st.integers(0, 2)) == 0:
        odd = ('name="file"', "name=", 'name="expires_after"', "filename*=utf-16''%ff", ";;;=", 'name="é"')
        parts += [_part(draw(st.sampled_from(odd)), b"x")] * draw(st.sampled_from((1, 2, 2000)))
    end = f"--{BOUNDARY}--\r\n".encode()
    body = b"".join(draw(st.permutations(parts)) if len(parts) < 5 else parts) + end
    if draw(st.integers(0, 3)) == 0:
        body = body[: draw(st.integers(0, len(body)))]
    boundaries = (BOUNDARY, "", "other", '"', "x" * 5000, "\xff", f'"{BOUNDARY}"', "b; boundary=c")
    return body, f"multipart/form-data; boundary={draw(_mostly(BOUNDARY, boundaries))}"


def _part(disposition: str, content: bytes) -> bytes:
    head = f"--{BOUNDARY}\r\nContent-Disposition: form-data; {disposition}\r\n\r\n"
    return head.encode() + content + b"\r\n"


def _mostly(right: str, others: Sequence[str]) -> st.SearchStrategy[str]:
    return st.sampled_from((*(right,) * (3 * len(others)), *others))


def _short() -> st.SearchStrategy[str]:
    """Texts that fit into a request line, without lone surrogates."""
    return values.texts().map(lambda text: text[:2000])


def _is_short_wait(text: str) -> bool:
    """A wait that is allowed may be minutes long, which is no hang."""
    try:
        return not float(text) > 0.1
    except ValueError:
        return True
