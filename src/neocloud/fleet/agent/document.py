"""The document with the results of a host's checks at one time: JSON, and its reader.

The reader is for what a host sent, which may be anything: it bounds size, depth, counts and lengths, and
refuses what it does not know with the reason.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, TypeVar, cast

from neocloud.fleet.nodes.events import CheckScope, Status, Verdict
from neocloud.fleet.policy.actions import Action

FORMAT = 1
MOST_BYTES = 1 << 18
MOST_VERDICTS = 512
MOST_NOT_RUN = 256
LONGEST_NAME = 128
LONGEST_TEXT = 512
LATEST = 1 << 36
"""Seconds since 1970; far beyond any clock that is meant."""
_Choice = TypeVar("_Choice", bound=StrEnum)


class DocumentError(ValueError):
    """The document is refused; says why."""


@dataclass(frozen=True)
class NotRun:
    """A check that was not made, and why. It is neither passed nor failed."""

    check: str
    why: str


@dataclass(frozen=True)
class Document:
    host: str
    boot: str
    at: float
    """Time by the host's clock, which may be wrong."""
    since_boot_s: float
    verdicts: Sequence[Verdict] = ()
    not_run: Sequence[NotRun] = ()
    simulated: str = ""
    """The simulated part; "" where everything was real."""


def to_json(document: Document) -> dict[str, Any]:
    """Return the document as `from_json` reads it."""
    return {
        "format": FORMAT,
        "host": document.host,
        "boot": document.boot,
        "at": document.at,
        "since_boot_s": document.since_boot_s,
        "simulated": document.simulated,
        "verdicts": [_verdict_json(each) for each in document.verdicts],
        "not_run": [{"check": each.check, "why": each.why} for each in document.not_run],
    }


def _verdict_json(verdict: Verdict) -> dict[str, Any]:
    return {
        "id": verdict.id,
        "check": verdict.check,
        "status": verdict.status.value,
        "sample": verdict.sample,
        "threshold": verdict.threshold,
        "source": verdict.source,
        "version": verdict.version,
        "action": verdict.action.value,
        "scope": verdict.scope.value,
        "is_fatal": verdict.is_fatal,
        "devices": verdict.devices,
    }


def encode(document: Document) -> bytes:
    """Return the document as bytes that `decode` takes: with shorter samples where it would be too large."""
    for longest in (LONGEST_TEXT, 100, 20):
        verdicts = [replace(each, sample=each.sample[:longest]) for each in document.verdicts]
        shortened = replace(document, verdicts=verdicts)
        data = json.dumps(to_json(shortened), ensure_ascii=False, allow_nan=False).encode()
        if len(data) <= MOST_BYTES:
            return data
    raise DocumentError(f"{len(document.verdicts)} verdicts do not fit in {MOST_BYTES:,} bytes")


def decode(data: bytes, *, host: str | None = None, at: float | None = None) -> Document:
    """Return the document that a host sent. Raises DocumentError.

    `host`: who the sender is known to be; a document of another host is refused. `at`: when it came, by the
    receiver's clock. The verdicts have that time then, and a host whose clock lies cannot speak from later.
    Ids are of the host's choice, and name a verdict only together with the host.
    """
    if len(data) > MOST_BYTES:
        raise DocumentError(f"it has more than {MOST_BYTES:,} bytes")
    try:
        given = json.loads(data, parse_constant=_no_constant, object_pairs_hook=_object)
    except RecursionError:
        raise DocumentError("it is nested too deeply") from None
    except DocumentError:
        raise
    except ValueError as error:
        raise DocumentError(f"it is not JSON: {str(error)[:200]}") from None
    return from_json(given, host=host, at=at)


def from_json(given: object, *, host: str | None = None, at: float | None = None) -> Document:
    """Return the document in decoded JSON; checks it as `decode` does."""
    fields = Fields(given, "the document")
    if fields.number("format") != FORMAT:
        raise DocumentError(f"its format is not {FORMAT}, which this release reads")
    name, boot = fields.text("host", LONGEST_NAME), fields.text("boot", LONGEST_NAME)
    said_at = fields.number("at")
    judged_at = said_at if at is None else at
    if not name or not boot:
        raise DocumentError("host and boot are not empty")
    if host is not None and name != host:
        raise DocumentError(f"it is of host {name!r}, and {host!r} sent it")
    document = Document(
        host=name,
        boot=boot,
        at=said_at,
        since_boot_s=fields.number("since_boot_s"),
        simulated=fields.text("simulated"),
        verdicts=[_verdict(each, name, boot, judged_at) for each in fields.rows("verdicts", MOST_VERDICTS)],
        not_run=[_not_run(each) for each in fields.rows("not_run", MOST_NOT_RUN)],
    )
    fields.finish()
    checks = [each.check for each in document.verdicts]
    if len(set(checks)) < len(checks):
        raise DocumentError("a check has two verdicts")
    if both := {each.check for each in document.not_run}.intersection(checks):
        raise DocumentError(f"{min(both)!r} has a verdict and was not run")
    return document


def _verdict(fields: "Fields", host: str, boot: str, at: float) -> Verdict:
    verdict = Verdict(
        at=at,
        node=host,
        id=fields.text("id", LONGEST_NAME),
        check=fields.text("check", LONGEST_NAME),
        status=fields.choice("status", Status),
        boot=boot,
        sample=fields.text("sample"),
        threshold=fields.text("threshold"),
        source=fields.text("source"),
        version=fields.text("version"),
        action=fields.choice("action", Action),
        scope=fields.choice("scope", CheckScope),
        is_fatal=fields.boolean("is_fatal"),
        devices=fields.text("devices") if "devices" in fields else "",
    )
    fields.finish()
    if not verdict.id or not verdict.check:
        raise DocumentError("a verdict has an id and a check")
    return verdict


def _not_run(fields: "Fields") -> NotRun:
    found = NotRun(fields.text("check", LONGEST_NAME), fields.text("why"))
    fields.finish()
    return found


def _no_constant(name: str) -> float:
    raise DocumentError(f"{name} is not a number here")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise DocumentError("a field is there twice")
    return found


class Fields:
    """The fields of an object, each taken once and checked."""

    def __init__(self, given: object, what: str) -> None:
        if not isinstance(given, dict):
            raise DocumentError(f"{what} is not an object")
        self._left, self._what = dict(cast(dict[str, object], given)), what

    def __contains__(self, name: str) -> bool:
        """Return whether the document has an optional field, which agents of earlier releases do not send."""
        return name in self._left

    def _take(self, name: str) -> object:
        if name not in self._left:
            raise DocumentError(f"{self._what} has no field {name!r}")
        return self._left.pop(name)

    def value(self, name: str) -> object:
        """Return a field that another reader checks."""
        return self._take(name)

    def text(self, name: str, longest: int = LONGEST_TEXT) -> str:
        value = self._take(name)
        if not isinstance(value, str):
            raise DocumentError(f"{name} of {self._what} is not a text")
        if len(value) > longest:
            raise DocumentError(f"{name} of {self._what} has more than {longest} characters")
        if not value.isprintable():
            raise DocumentError(f"{name} of {self._what} has characters that cannot be printed")
        return value

    def number(self, name: str) -> float:
        value = self._take(name)
        if type(value) not in (int, float) or not 0 <= cast(float, value) <= LATEST:
            raise DocumentError(f"{name} of {self._what} is not a number from 0 to {LATEST}")
        number = float(cast(float, value))
        if not math.isfinite(number):
            raise DocumentError(f"{name} of {self._what} is not finite")
        return number

    def boolean(self, name: str) -> bool:
        value = self._take(name)
        if type(value) is not bool:
            raise DocumentError(f"{name} of {self._what} is neither true nor false")
        return value

    def choice(self, name: str, type_: type[_Choice]) -> _Choice:
        text = self.text(name, LONGEST_NAME)
        try:
            return type_(text)
        except ValueError:
            raise DocumentError(
                f"{name} of {self._what} is {text!r}, which is none of {', '.join(type_)}"
            ) from None

    def rows(self, name: str, most: int) -> "list[Fields]":
        value = self._take(name)
        if not isinstance(value, list):
            raise DocumentError(f"{name} of {self._what} is not a list")
        rows = cast(list[object], value)
        if len(rows) > most:
            raise DocumentError(f"{name} of {self._what} has more than {most} entries")
        return [Fields(each, f"{name}[{number}]") for number, each in enumerate(rows)]

    def finish(self) -> None:
        if self._left:
            raise DocumentError(f"{self._what} has a field {min(self._left)[:40]!r}, which is not known")
