"""The standing attacker on HTTP: every route of the gateway, and bytes that are no HTTP.

As in test_fuzz.py, which has the API: whatever is sent, the answer is a refusal in OpenAI's shape or a
result, never an internal error; nothing hangs, no traceback is in the log, and nothing is another tenant's.
"""

import json
from collections.abc import Iterator
from email.parser import BytesParser
from email.policy import HTTP
from pathlib import Path
from random import Random

import httpx
import pytest
from hypothesis import Phase

from neocloud.testing.emulator import connected, emulator_process
from tests.real.security.fuzzing.calls import PATIENCE_SECONDS, Answer
from tests.real.security.fuzzing.gateway_requests import BODIES, Request, requests
from tests.real.security.fuzzing.gateway_target import VICTIMS_MODEL, Target, all_routes, target
from tests.real.security.fuzzing.raw_http import Raw, raw_requests, talk
from tests.real.security.fuzzing.rounds import SEED, WHOLE, rounds, search

SHARE, RAW_SHARE = 0.3, 0.05
"""Of the time of a long run."""
PER_ROUTE, RAW = 8 * WHOLE, 15 * WHOLE
MOST_MEMORY_BYTES = 1 << 29
"""Of the gateway after all of it; it starts with 120 MB."""
NOT_READY = frozenset({"model_not_ready", "model_stopped"})
"""Whom a 503 tells the truth: the model has no engine."""
AS_FOUND = (Phase.generate,)
"""Large bodies take minutes to make smaller."""
RAW_PATHS = tuple(sorted({*BODIES, "/v1/files", "/v1/models", "/health", "/"}))


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with target(tmp_path_factory.mktemp("fuzzed-gateway")) as ready:
        yield ready


def complaint_about(request: Request, data: bytes, *, is_ended: bool) -> str:
    """Return the defect of the answer; "" for none."""
    if not is_ended:
        return "no end of the answer"
    head, _, body = data.partition(b"\r\n\r\n")
    line, _, lines = head.partition(b"\r\n")
    if not line.startswith(b"HTTP/1.1 "):
        return f"no answer: {data[:200]!r}"
    headers = BytesParser(policy=HTTP).parsebytes(lines)
    status, kind = int(line.split(b" ")[1]), headers.get_content_type()
    if status < 400 or request.method == "HEAD":
        return Answer(str(status), data).complaint()
    try:
        error = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        return f"{status} without an error in OpenAI's shape: {data[:500]!r}"
    if set(error) != {"message", "type", "param", "code"} or kind != "application/json":
        return f"{status} in another shape: {data[:500]!r}"
    if status == 503 and error["code"] in NOT_READY:
        return ""
    return Answer(str(status), data).complaint()


def test_no_request_breaks_the_gateway(attacked: Target, tmp_path: Path) -> None:
    routes = all_routes(tmp_path)
    assert len(routes) > 20
    for number in rounds(SHARE):
        found = round_of(number, attacked, routes)
        assert not found, f"FUZZ_SEED={number}: {len(found)} routes\n" + "\n".join(found)
        assert "Traceback" not in attacked.log(), f"FUZZ_SEED={number}: {attacked.log()[-4000:]}"
    assert_unharmed(attacked)
    assert attacked.engine.counts()["requests"], "nothing came through to the engine"


def round_of(number: int, attacked: Target, routes: list[tuple[str, str]]) -> list[str]:
    def attack(request: Request) -> str:
        answers = talk(attacked.address, request.encoded(), PATIENCE_SECONDS)
        if answers.is_reset and not answers.data:
            return ""
        complaint = complaint_about(request, answers.data, is_ended=answers.is_ended)
        return (
            complaint
            and f"{str(request)[:1000]} with {request.body[:600]!r} ({len(request.body)} bytes): {complaint}"
        )

    Random(number).shuffle(routes)
    made = (requests(method, path, attacked.reachable) for method, path in routes)
    return [each for each in (search(number, one, attack, PER_ROUTE, AS_FOUND) for one in made) if each]


def test_no_bytes_break_the_gateway(attacked: Target) -> None:
    for number in rounds(RAW_SHARE):
        assert not raw_round(number, attacked.address, "key-a")
        assert "Traceback" not in attacked.log(), f"FUZZ_SEED={number}: {attacked.log()[-4000:]}"
    assert_unharmed(attacked)


def test_no_bytes_break_the_api_s_json(tmp_path: Path) -> None:
    with emulator_process(tmp_path), connected(tmp_path) as cloud:
        token = cloud.client.tokens.token()
        log = tmp_path / "server.log"
        for number in rounds(RAW_SHARE):
            assert not raw_round(number, cloud.http_endpoint, token, "/nebius.iam.v1.ProfileService/Get")
            assert "Traceback" not in log.read_text(errors="replace"), f"FUZZ_SEED={number}"
        answer = httpx.get(f"http://{cloud.http_endpoint}/healthz", trust_env=False, timeout=60)
        assert answer.status_code < 500


def raw_round(number: int, address: str, token: str, *paths: str) -> str:
    def attack(raw: Raw) -> str:
        return raw.complaint_about(talk(address, raw.data))

    found = search(number, raw_requests((*RAW_PATHS, *paths), token), attack, RAW, AS_FOUND)
    return found and f"FUZZ_SEED={number}: {found}"


def assert_unharmed(attacked: Target) -> None:
    assert httpx.get(f"{attacked.gateway.url}/health", trust_env=False, timeout=60).status_code == 200
    assert attacked.process.memory_info().rss < MOST_MEMORY_BYTES
    assert VICTIMS_MODEL not in attacked.engine.counts()["adapters"]


def test_the_attacker_notices_an_answer_that_is_wrong() -> None:
    request = Request("GET", "/", (), b"")
    for answer in (b"", b"HTTP/1.1 500 X\r\n\r\n", b"HTTP/1.1 400 X\r\n\r\nno", b"HTTP/1.1 400 X\r\n\r\n{}"):
        assert complaint_about(request, answer, is_ended=True)
    error = json.dumps({"error": {"message": "m", "type": "t", "param": None, "code": "c"}}).encode()
    for status, is_right in ((400, True), (500, False), (503, False)):
        head = b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\n\r\n" % status
        assert (not complaint_about(request, head + error, is_ended=True)) is is_right
    assert complaint_about(request, head + error, is_ended=False)


def test_the_attacker_notices_an_engine_that_fails(attacked: Target) -> None:
    attacked.engine.tell(fault="error")
    try:
        assert round_of(SEED, attacked, [("POST", "/v1/chat/completions")])
    finally:
        attacked.engine.tell(fault="")
