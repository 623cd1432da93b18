"""Find e-mail addresses, card numbers, IBANs and telephone numbers in texts.

Only numbers with a right checksum count as cards and IBANs. Telephone numbers have none: they are found by
their usual forms, so some are missed and some are other numbers. Names and postal addresses are not found.
Values are counted, and never returned. Needs only the standard library, and time linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

MOST_PLACES = 5
Span = tuple[int, int]
"""Beginning and end of a value in a text."""
KINDS = {
    "email": ("e-mail address", "e-mail addresses"),
    "card": ("card number", "card numbers"),
    "iban": ("IBAN", "IBANs"),
    "phone": ("telephone number", "telephone numbers"),
}
LONGEST_LOCAL, LONGEST_DOMAIN = 64, 253
_LOCAL = re.compile(r"[\w.!#$%&'*+/=?^`{|}~-]+\Z")
_DOMAIN = re.compile(r"(?:[^\W_](?:[\w-]{0,62})\.){1,10}[^\W\d_]{2,24}(?![\w-])")
_DIGITS = re.compile(r"\d\D{0,3}\d\D{0,3}\d\D{0,3}\d")
"""Texts without it hold none of the numbers."""
_CARD = re.compile(r"(?<![\w.,+])[2-6]\d{3}(?:[ -]?\d){8,14}\d(?!\d)")
_IBAN = re.compile(r"(?<![^\W_])[A-Za-z]{2}\d{2}(?: ?[A-Za-z0-9]){11,30}")
_PHONE = re.compile(
    r"(?<![\w+.])(?:"
    r"\+[1-9](?:[ ./()-]{0,2}\d){7,14}"  # of any country, with its code
    r"|\(?[2-9]\d{2}\)?[ .-][2-9]\d{2}[ .-]\d{4}"  # North America
    r"|\(?00?[1-9]\d{0,4}\)?[ /-](?:[ -]?\d){6,9}"  # within most other countries
    r")(?![\w-])"
)
_IBAN_LENGTHS = {
    15: "NO", 16: "BE", 18: "DK FI FK FO GL NL SD", 19: "MK SI", 20: "AT BA EE KZ LT LU MN XK",
    21: "CH HR LI LV",
    22: "BG BH CR DE GB GE IE ME RS VA", 23: "AE GI IL IQ OM SO TL", 24: "AD CZ ES MD PK RO SA SE SK TN VG",
    25: "LY PT ST", 26: "IS TR", 27: "BI DJ FR GR IT MC MR SM", 28: "AL AZ BY CY DO GT HN HU LB NI PL SV",
    29: "BR EG PS QA UA", 30: "JO KW MU YE", 31: "MT SC", 33: "RU",
}  # fmt: skip
_LENGTH_OF = {code: length for length, codes in _IBAN_LENGTHS.items() for code in codes.split()}


@dataclass
class Found:
    """The number of values of a kind, of conversations that hold one, and the places of the first."""

    values: int = 0
    conversations: int = 0
    places: list[str] = field(default_factory=list)


@dataclass
class PersonalData:
    found: dict[str, Found] = field(default_factory=dict)

    def add(self, texts: Iterable[str], place: str) -> None:
        """Count what the texts of one conversation hold."""
        counts = dict.fromkeys(KINDS, 0)
        for text in texts:
            for kind in kinds_in(text):
                counts[kind] += 1
        for kind, count in counts.items():
            if count:
                each = self.found.setdefault(kind, Found())
                each.values += count
                each.conversations += 1
                if len(each.places) < MOST_PLACES:
                    each.places.append(place)

    def lines(self) -> list[str]:
        """Return what was found, one kind a sentence; none for nothing."""
        return [
            f"personal data: {each.values} {KINDS[kind][each.values > 1]} in {each.conversations}"
            f" conversation{'s' if each.conversations > 1 else ''}, first: {', '.join(each.places)}"
            for kind in KINDS
            if (each := self.found.get(kind))
        ]


def kinds_in(text: str) -> Iterator[str]:
    """Yield the kind of each value in the text. A number counts once, as the first kind that fits."""
    for kind, spans in _finders(text):
        found = list(spans(text))
        yield from (kind for _ in found)
        text = _replaced(text, found, "#")


def masked(text: str) -> str:
    """Return the text with each value replaced by the name of its kind."""
    for kind, spans in _finders(text):
        text = _replaced(text, list(spans(text)), f"[{KINDS[kind][0]}]")
    return text


def _finders(text: str) -> Iterator[tuple[str, Callable[[str], Iterator[Span]]]]:
    """Yield the searches that may find something, in the order in which a value is taken for one kind."""
    if "@" in text:
        yield "email", _emails
    if _DIGITS.search(text):
        yield from (("iban", _ibans), ("card", _cards), ("phone", _phones))


def _emails(text: str) -> Iterator[Span]:
    at, end = text.find("@"), 0
    while at >= 0:
        domain = _DOMAIN.match(text[at + 1 : at + 2 + LONGEST_DOMAIN])
        local = _LOCAL.search(text[max(end, at - LONGEST_LOCAL) : at])
        if domain and local:
            end = at + 1 + domain.end()
            yield at - len(local[0]), end
        at = text.find("@", at + 1)


def _ibans(text: str) -> Iterator[Span]:
    position = 0
    while found := _IBAN.search(text, position):
        length = _iban_length(found[0])
        position = found.start() + max(length, 2)
        if length:
            yield found.start(), position


def _cards(text: str) -> Iterator[Span]:
    return (found.span() for found in _CARD.finditer(text) if is_luhn(re.sub(r"\D", "", found[0])))


def _phones(text: str) -> Iterator[Span]:
    return (found.span() for found in _PHONE.finditer(text))


def _iban_length(text: str) -> int:
    """Return the length of the IBAN that the text begins with, spaces included; 0 for none."""
    wanted = _LENGTH_OF.get(text[:2].upper(), 0)
    places = [place for place, character in enumerate(text) if character != " "]
    if not wanted or len(places) < wanted:
        return 0
    end = places[wanted - 1] + 1
    compact = text[:end].replace(" ", "").upper()
    number = "".join(str(int(each, 36)) for each in compact[4:] + compact[:4])
    return end if int(number) % 97 == 1 and not text[end : end + 1].isalnum() else 0


def is_luhn(digits: str) -> bool:
    """Return whether the last digit is the checksum of the others."""
    doubled = [int(each) * (1 + at % 2) for at, each in enumerate(reversed(digits))]
    return sum(each - 9 * (each > 9) for each in doubled) % 10 == 0


def _replaced(text: str, found: list[Span], by: str) -> str:
    parts, position = list[str](), 0
    for start, end in found:
        parts.append(text[position:start])
        position = end
    return by.join([*parts, text[position:]])
