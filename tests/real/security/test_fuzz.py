"""A standing attacker: every method of the API, with requests that no client would send.

Hypothesis makes the requests from the contract's descriptors, people of four ranks send them by gRPC and by
JSON, and whatever they hold, the answer is a refusal or a result: no internal error, no hang, no traceback in
the log, nothing of another tenant's, and the other tenant is afterwards as it was. The number of requests is
fixed and their order follows from the seed, so a failure can be had again; `make fuzz SECONDS=600` continues.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
from hypothesis import strategies as st

from neocloud.client.faults import CLEAR, inject
from neocloud.core import contract
from neocloud.services.emulator import SERVICE as FAULTS
from tests.real.security.fuzzing.calls import Answer, Fronts
from tests.real.security.fuzzing.requests import Known, headers, json_bodies, messages, wire_bytes
from tests.real.security.fuzzing.rounds import EXAMPLES, SEED, rounds, search
from tests.real.security.fuzzing.target import MARKER, Target, target

MOST_MEMORY_BYTES = 1 << 30
"""Of the server after all of it; it starts with 150 MB."""
SHARE = 0.6
"""Of the time of a long run; the other fronts have the rest."""
RANKS = ("admin", "editor", "editor", "viewer", "nobody")
"""Who may more comes further into the code."""
ADMINS_MAY_BREAK = frozenset(method.path for method in FAULTS.methods) | frozenset(
    path for path in contract.methods() if path.startswith("neocloud.emulator.")
)
"""An administrator injects faults into the emulator with these: that is what they are for."""

WHO_AM_I = "nebius.iam.v1.ProfileService/Get"

Send = Callable[[str, bytes, str, dict[str, str]], Answer]


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with target(tmp_path_factory.mktemp("fuzzed")) as ready:
        yield ready


@pytest.fixture
def fronts(attacked: Target) -> Iterator[Fronts]:
    both = Fronts(attacked.grpc, attacked.http)
    yield both
    both.close()


def fuzz(path: str, number: int, bodies: st.SearchStrategy[bytes], send: Send, tokens: dict[str, str]) -> str:
    """Send some requests to one method. Returns what went wrong, with the request that was found for it."""
    ranks = st.sampled_from([rank for rank in RANKS if rank != "admin" or path not in ADMINS_MAY_BREAK])

    def attack(made: tuple[bytes, str, dict[str, str]]) -> str:
        body, rank, sent = made
        complaint = send(path, body, tokens[rank], sent).complaint()
        return (
            complaint and f"{path} as {rank} with {body[:600]!r} ({len(body)} bytes) and {sent}: {complaint}"
        )

    return search(number, st.tuples(bodies, ranks, headers()), attack, EXAMPLES)


def round_of(number: int, attacked: Target, fronts: Fronts, known: Known) -> list[str]:
    """Every method once over each front, in an order that follows from the seed."""
    tokens, found = attacked.tokens(), []
    paths = sorted(contract.methods())
    Random(number).shuffle(paths)
    for path in paths:
        if not all(fronts.by_grpc(WHO_AM_I, b"", token, {}).code == "OK" for token in tokens.values()):
            tokens = attacked.tokens()  # a call may have ended all their sessions
        if fronts.by_grpc(path, b"", tokens["admin"], {}).code == "UNIMPLEMENTED":
            continue  # answered by one line for all of them
        encoded = messages(path, known).map(lambda message: message.SerializeToString())
        for bodies, send in (
            (encoded, fronts.by_grpc),
            (wire_bytes(path, known), fronts.by_grpc),
            (json_bodies(path, known), fronts.by_json),
        ):
            found.append(fuzz(path, number, bodies, send, tokens))
    return [each for each in found if each]


@pytest.mark.repeated
def test_no_request_breaks_the_api_or_reaches_another_tenant(attacked: Target, fronts: Fronts) -> None:
    before, read = attacked.victim.inventory(), len(log_of(attacked.log))
    for number in rounds(SHARE):
        found = round_of(number, attacked, fronts, attacked.known())
        tracebacks = log_of(attacked.log)[read:].count("Traceback")
        assert not found, f"FUZZ_SEED={number}: {len(found)} methods\n" + "\n".join(found)
        assert not tracebacks, f"FUZZ_SEED={number}: {log_of(attacked.log)[read:][-4000:]}"
    assert attacked.process.is_running()
    assert attacked.process.memory_info().rss < MOST_MEMORY_BYTES
    assert attacked.victim.inventory() == before


def test_the_attacker_notices_a_call_that_breaks(attacked: Target, fronts: Fronts) -> None:
    path, known = "nebius.compute.v1.DiskService/List", attacked.known()
    bodies = messages(path, known).map(lambda message: message.SerializeToString())
    client = attacked.attacker.client
    inject(client, "unavailable", calls=path)
    try:
        assert "UNAVAILABLE" in fuzz(path, SEED, bodies, fronts.by_grpc, attacked.tokens())
    finally:
        client.call(CLEAR)
    assert not fuzz(path, SEED, bodies, fronts.by_grpc, attacked.tokens())


def test_the_attacker_notices_what_is_another_tenants() -> None:
    assert Answer("OK", b"name: " + MARKER.encode()).complaint()
    assert Answer("500", b"").complaint() and Answer("INTERNAL", b"").complaint()
    assert not Answer("404", b"").complaint()


def log_of(file: Path) -> str:
    return file.read_text(errors="replace")
