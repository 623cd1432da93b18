"""Settings as operators name and write them: the name, the type and range, and the nearest right form."""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import MISSING, Field, dataclass
from difflib import get_close_matches
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any, cast

from neocloud.settings.option_values import Option, ipv4_range
from neocloud.settings.settings import Settings, flag, is_list, options

AT_FIRST_START = frozenset(
    ("listen", "domain", "gateway_hosts", "grpc_port", "http_port")
    + ("tls_certificate", "tls_key", "acme_domains", "acme_email", "acme_agree_tos")
    + ("database_url_file", "price_file", "quota_file", "model_folders", "metrics", "log_level")
    + ("public_pool", "public_interface", "opened_ranges", "emulator", "emulator_gpus")
)
"""The settings that `neo up` shows as options, beside the state folder, the service and TLS."""
BY_NEO_UP = frozenset({"emulator", "emulator_gpus"})
"""Settings that are fixed from a cloud's first start on; `neo config set` refuses them."""
UNITS = {
    "audit_days": "days",
    "history_days": "days",
    "calls_per_second": "calls a second",
    "sign_ins_per_second": "calls a second",
}
_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_TYPES: dict[type, str] = {bool: "true or false", int: "whole number", float: "number", Path: "path"}


class BadValue(ValueError):
    """A value that a setting cannot have, with what it can have."""

    def __init__(self, problem: str, next_step: str) -> None:
        super().__init__(problem)
        self.problem, self.next_step = problem, next_step


@dataclass(frozen=True)
class Setting:
    """One setting that an operator may choose."""

    item: Field[Any]
    option: Option

    @property
    def field(self) -> str:
        """The key in `config.json`."""
        return self.item.name

    @property
    def name(self) -> str:
        return flag(self.item).removeprefix("--")

    @property
    def default(self) -> Any:
        return self.item.default if self.item.default is not MISSING else None

    @property
    def unit(self) -> str:
        return UNITS.get(self.field, "")

    @property
    def type(self) -> str:
        """Return the type, with the words or the form that are allowed."""
        option = self.option
        words = _TYPES.get(option.kind) or option.metavar or "text"
        return f"list of {words}" if is_list(self.item) else words

    @property
    def range(self) -> str:
        """Return the least and the largest value; "" without such."""
        low, high = self.option.minimum, self.option.maximum
        if low is None:
            return ""
        return f"{low:g} to {high:g}" if high is not None else f"{low:g} or more"

    def read(self, texts: Sequence[str]) -> Any:
        """Return the value that these words stand for. Raises BadValue."""
        if is_list(self.item):
            words = [each for each in texts if not (self.option.clears and each == "none")]
            return tuple(self._one(each) for each in words)
        if len(texts) != 1:
            raise BadValue(
                f"{self.name} has one value ({self.type}), and {len(texts)} were given",
                "Quote a value that contains spaces",
            )
        return self._one(texts[0])

    def _one(self, text: str) -> Any:
        if self.option.kind is bool:
            if text.lower() not in _WORDS:
                raise self._refusal(text, "", self._nearest_word(text, ["true", "false"]))
            return _WORDS[text.lower()]
        try:
            found = self.option.parse(text)
        except ValueError as error:
            problem = str(error) if self.option.kind is str or self.option.kind is Path else ""
            raise self._refusal(text, problem, self._nearest_form(text)) from None
        low, high = self.option.minimum, self.option.maximum
        if low is not None and found < low:
            raise self._refusal(text, "", f"{low:g}")
        if high is not None and found > high:
            raise self._refusal(text, "", f"{high:g}")
        return found

    def _nearest_form(self, text: str) -> str:
        words = (self.option.metavar or "").split("|")
        if len(words) > 1:
            return self._nearest_word(text, words)
        if self.option.parse in (IPv4Network, ipv4_range):
            with suppress(ValueError):
                return str(IPv4Network(text, strict=False))
        number = re.match(r"\d{1,9}", text) if self.option.kind in (int, float) else None
        if number is None:
            return ""
        least, most = self.option.minimum or 0, self.option.maximum
        found = max(int(number[0]), least)
        return f"{found if most is None else min(found, most):.0f}"

    @staticmethod
    def _nearest_word(text: str, words: Sequence[str]) -> str:
        return (get_close_matches(text.lower(), words, 1, 0.3) or words)[0]

    def _refusal(self, text: str, problem: str, nearest: str) -> BadValue:
        allowed = f"{self.type}, {self.range}" if self.range else self.type
        unit = f", in {self.unit}" if self.unit else ""
        why = f": {problem}" if problem else ""
        if nearest:
            step = f"The nearest value is {nearest}: `neo config set {self.name} {nearest}`"
        else:
            step = self.option.example or f"See `neo config list`, which describes {self.name}"
        return BadValue(f"{self.name} ({allowed}{unit}) cannot be {text!r}{why}", step)


def catalogue() -> dict[str, Setting]:
    """Return all settings that operators choose, by name."""
    found = (Setting(*each) for each in options().values())
    return {each.name: each for each in found if each.option.by_neo}


def find(name: str) -> Setting:
    """Return a setting by the name of its option or of its key in the file. Raises BadValue."""
    known = catalogue()
    plain = name.strip().removeprefix("--").replace("_", "-").lower()
    by_field = {each.field.replace("_", "-"): each for each in known.values()}
    if found := known.get(plain) or by_field.get(plain):
        return found
    near = nearest_name(plain)
    raise BadValue(
        f"There is no setting {name!r}",
        f"The nearest is {near}; `neo config list` shows all" if near else "`neo config list` shows all",
    )


def nearest_name(name: str) -> str:
    """Return the name of the setting that is most like this one; "" where none is."""
    near = get_close_matches(name.replace("_", "-"), list(catalogue()), 1)
    return near[0] if near else ""


def text_of(value: object) -> str:
    """Return a value as `neo config set` takes it."""
    if isinstance(value, tuple):
        words = [text_of(each) for each in cast(tuple[object, ...], value)]
        is_range = bool(words) and all(isinstance(each, int) for each in cast(tuple[object, ...], value))
        return ("-" if is_range else " ").join(words)
    if value is None or isinstance(value, bool):
        return "" if value is None else str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def changed(before: Settings, after: Settings) -> list[Setting]:
    """Return the settings that differ."""
    return [
        each for each in catalogue().values() if getattr(before, each.field) != getattr(after, each.field)
    ]
