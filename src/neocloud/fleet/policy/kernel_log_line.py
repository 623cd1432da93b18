"""Forms of one line of the kernel log: of /dev/kmsg, dmesg, journalctl, syslog, and of what carries them.

Prefixes of a message are removed piece by piece: marks of programs that carry lines (kubectl, docker,
grep), times, levels, and the name "kernel". A piece that no form has stays, and as a fault counts only at the
beginning of a message, such a line reports none.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime

from neocloud.fleet.policy.kernel_log import LONGEST_LINE, KernelMessage, finding_of

MOST_PIECES = 16
_KMSG = re.compile(r"(\d{1,6}),(\d{1,20}),(\d{1,20}),[^;]{0,64};(.*)")
_COLOUR = re.compile(r"(?:\x1b|\^\[)\[[0-9;]{0,32}[mK]|\[\d{1,3}(?:;\d{1,3}){0,4}m")
"""Colour codes of a terminal; the last form is what is left after a program has removed the escape."""
_WEEKDAY = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun),? {1,2}"
_DATE = r"\d{4}-\d\d-\d\d"
_CLOCK = r"\d\d:\d\d:\d\d"
_SHORT = rf"[^\W\d_]{{3,5}}\.? [ \d]\d(?: \d{{4}})? {_CLOCK}"
_DELTA = r"(?: ?[<,] {0,12}[+-]?\d{1,12}\.\d{1,9} {0,2}>?)?"
_UPTIME = re.compile(rf"\[ {{0,12}}(\d{{1,12}}\.\d{{1,9}}){_DELTA}\](?: |$|(?=\[))")
_WALL = re.compile(rf"\[(\w{{3}} \w{{3}} [ \d]\d {_CLOCK} \d{{4}}){_DELTA}\](?: |$)")
_SINCE = re.compile(r"\[[ <]{0,12}\+? {0,12}(\d{1,12}\.\d{1,9}) {0,2}>?\](?: |$)")
"""Since the line before: `dmesg -e` and `--time-format delta`."""
_MINUTE = re.compile(r"\[ ?(\w{3}) ?([ \d]\d \d\d:\d\d)\](?: |$)")
_ISO = re.compile(
    rf"(?P<weekday>{_WEEKDAY})?(?P<time>{_DATE}[T ]{_CLOCK}(?P<fraction>[.,]\d{{1,9}})?)"
    r" ?(?P<zone>Z|[+-]\d\d:?(?:\d\d)?|(?(weekday)[A-Z]{2,5}|(?!)))?(?: |$)"
)
_SYSLOG = re.compile(rf"({_SHORT})([.,]\d{{1,9}})?(?: |$)")
_WRITTEN_OUT = re.compile(rf"{_WEEKDAY}(\w{{3}} [ \d]\d {_CLOCK})(?: [A-Z]{{2,5}})?(?: (\d{{4}}))?(?: |$)")
_SECONDS = re.compile(r"(\d{9,10}\.\d{3,9})(?: |$)")
_CALLER = re.compile(r"\[ {0,12}[TC]\d{1,10}(?:[@/ ][^\]]{0,32})?\] ?")
_PRIORITY = re.compile(r"<(\d{1,3})>(1 (?=\d{4}-|- ))?")
_FACILITY = r"(kern|user|mail|daemon|auth|syslog|lpr|news|uucp|cron|authpriv|ftp|res\d|local[0-7])"
_LEVEL = re.compile(rf"{_FACILITY} *:(?:emerg|alert|crit|err|warn|notice|info|debug) *: ?")
_LOCAL = r"(?:(?P<facility>[a-z]{2,10}\d?)\.[a-z]{3,10} )?"
"""Facility and level as busybox writes them."""
_OF_KERNEL = re.compile(rf"(?:\S{{1,255}} )?{_LOCAL}kernel: ?")
_OF_KERNEL_AFTER_TIME = re.compile(rf"\S{{1,255}} {_LOCAL}kernel(?:(?: - ?){{3}}|: ?| (?=\S))")
_STRUCTURED = re.compile(
    r"\S{1,255} (?P<program>\S{1,48}) (?P<process>\S{1,128}) \S{1,32} "
    r"(?:-|(?:\[(?:[^\]\\]|\\.){0,1000}\]){1,8})(?: \ufeff?|$)"
)
_OF_PROGRAM = re.compile(
    r"(?:\S{1,255} )?(?:[a-z]{2,10}\d?\.[a-z]{3,10} )?[^\s:\[]{1,255}(?:\[\d{1,10}\])?: "
)
_OF_DRIVER = ("NVRM: ", "nvidia-nvswitch")
_REPEATED = re.compile(r"message repeated \d{1,9} times: \[ ?(.*?)\]?")
_BEGIN = (
    r"(?=\[ {0,12}[\d<+]|\[\w{3} ?(?:\w{3} ?)?[ \d]\d|<\d{1,3}>|\d{4}-\d\d-\d\d[T ]|\d{9,10}\.\d{3}"
    rf"|\d{{1,3}},\d{{1,20}},\d|{_SHORT}|{_WEEKDAY}|[a-z]{{4,8}} *:[a-z]{{3,6}} *: "
    r"|(?:\S{1,255} )?kernel: |NVRM: |nvidia-nvswitch\d)"
)
"""Prefixes of a line of the kernel log."""
_CARRIED = tuple(
    re.compile(each)
    for each in (
        r"\ufeff+",
        r"\[pod/[\w./-]{1,400}\] ",  # kubectl --prefix
        r"(?:stdout|stderr) [FP] ",  # a container runtime's own file
        r"[\w.-]{1,253} +\| ",  # docker compose
        r"[\w.-]{1,253}[:>] " + _BEGIN,  # pdsh, clush, srun --label
        r" {0,8}\d{1,9}\t",  # cat -n
        r"\d{1,9}[:-](?=\D)",  # grep -n
        r"[\w./+~@-]{1,255}[:-](?:\d{1,9}[:-])?" + _BEGIN,  # grep of several files
        r"\d{1,9}[:-]" + _BEGIN,
    )
)


@dataclass(frozen=True)
class Line:
    """One parsed line."""

    record: KernelMessage | None
    """None for a line of which nothing shows that it is the kernel's own."""
    since_s: float | None = None
    """Seconds since the line before, where the line has no other time."""


class _NotTheKernels(Exception):
    """The line says that a program wrote it."""


def record_of(line: str) -> KernelMessage | None:
    """Return the record in a line with its prefix; None where nothing shows that it is the kernel's own."""
    text = line[:LONGEST_LINE].rstrip("\r\n")
    if match := _KMSG.fullmatch(text):
        return _of_kmsg(match)
    parts = _Prefix(text, is_pasted=False)
    return parts.record if parts.is_known else None


def pasted(line: str) -> Line:
    """Return what is read of a line that a person pasted. Without any prefix it counts as the kernel's."""
    text = _COLOUR.sub("", line[:LONGEST_LINE]).rstrip("\r\n \t").replace("\x00", "")
    parts = _Prefix(text, is_pasted=True)
    return Line(parts.record, parts.since_s)


def sequence_of(line: str) -> int | None:
    """Return the sequence of a record of /dev/kmsg, by any writer; None for its continuations."""
    match = _KMSG.match(line)
    return int(match[2]) if match else None


class _Prefix:
    """Takes the pieces before the message off a line."""

    def __init__(self, text: str, *, is_pasted: bool) -> None:
        self.text, self.is_pasted = text, is_pasted
        self.time_s: float | None = None
        self.since_s: float | None = None
        self.is_known = False
        """Whether a piece of any form was there."""
        self._has_name = self._has_clock = self._is_structured = False
        self._is_inside = False
        """Whether what follows is from the kernel or dmesg, and no longer from what carries their lines."""
        self.record: KernelMessage | None = None
        try:
            self.record = self._read()
        except _NotTheKernels:
            self.is_known = True

    def _read(self) -> KernelMessage | None:
        for _ in range(MOST_PIECES):
            if self.is_pasted and (kmsg := _KMSG.fullmatch(self.text)):
                return _of_kmsg(kmsg)
            if not (self._time() or self._level() or self._name() or self._carried()):
                break
        message = self.text
        if self.is_known and self.is_pasted:
            message = message.lstrip(" ")
        elif self.is_pasted and (not message or message[0].isspace()):
            return None
        record = KernelMessage(message, self.time_s)
        is_doubtful = self._has_clock and not self._has_name and not message.startswith(_OF_DRIVER)
        if is_doubtful and _OF_PROGRAM.match(message):
            return record if self.is_pasted and finding_of(record) is not None else None
        return record

    def _cut(self, match: re.Match[str], *, is_inside: bool = False) -> bool:
        self.text, self.is_known = self.text[match.end() :], True
        self._is_inside = self._is_inside or is_inside
        return True

    def _time(self) -> bool:
        text = self.text
        if match := _UPTIME.match(text):
            self._take(float(match[1]))
        elif match := _WALL.match(text):
            self._take(_clock(match[1], "%a %b %d %H:%M:%S %Y"))
        elif match := _MINUTE.match(text):
            self._take(_clock(f"{match[1]} {match[2]} 2000", "%b %d %H:%M %Y"))
        elif match := _SINCE.match(text):
            self.since_s = float(match[1])
        elif match := _ISO.match(text):
            self._take(_iso(match))
            # dmesg alone writes a comma, and no name of a host after it.
            self._has_clock = self._has_clock or (match["fraction"] or "")[:1] != ","
        elif match := _SYSLOG.match(text):
            self._take(_clock_of_syslog(match[1]), is_clock=True)
        elif match := _WRITTEN_OUT.match(text):
            self._take(_clock(f"{match[1]} {match[2] or '2000'}", "%b %d %H:%M:%S %Y"), is_clock=True)
        elif match := _SECONDS.match(text):
            self._take(float(match[1]), is_clock=True)
        else:
            return False
        return self._cut(match, is_inside=text.startswith("["))

    def _take(self, time_s: float | None, *, is_clock: bool = False) -> None:
        """Keep the last time, which is nearest to the kernel; of a journal that of its lines."""
        if not self._has_name:
            self.time_s = time_s
        self._has_clock = self._has_clock or is_clock

    def _level(self) -> bool:
        match: re.Match[str] | None
        if match := _PRIORITY.match(self.text):
            _expect(int(match[1]) >> 3 == 0)
            self._is_structured = bool(match[2])
        elif match := _LEVEL.match(self.text):
            _expect(match[1] == "kern")
        elif self.is_known and (match := _CALLER.match(self.text)):
            pass
        else:
            return False
        return self._cut(match, is_inside=True)

    def _name(self) -> bool:
        if self._has_name:
            if match := _REPEATED.fullmatch(self.text):
                self.text = match[1]
                return True
            return False
        if self._is_structured and (match := _STRUCTURED.match(self.text)):
            _expect(match["program"] == "kernel" and match["process"] in ("-", "0"))
        elif match := (_OF_KERNEL_AFTER_TIME.match(self.text) if self._has_clock else None) or (
            _OF_KERNEL.match(self.text) if self.is_pasted or self._has_clock else None
        ):
            _expect(match["facility"] in (None, "kern"))
        else:
            return False
        self._has_name = True
        return self._cut(match)

    def _carried(self) -> bool:
        if not self.is_pasted or self._has_name or self._is_inside:
            return False
        for form in _CARRIED:
            if match := form.match(self.text):
                was_known = self.is_known
                self._cut(match)
                self.is_known = was_known
                return True
        return False


def _expect(is_kernels: bool) -> None:
    if not is_kernels:
        raise _NotTheKernels


def _of_kmsg(match: re.Match[str]) -> KernelMessage | None:
    if int(match[1]) >> 3:  # another facility: a program wrote it to /dev/kmsg
        return None
    return KernelMessage(match[4], int(match[3]) / 1e6, int(match[2]))


def _iso(match: re.Match[str]) -> float | None:
    zone = match["zone"] or ""
    try:
        at = datetime.fromisoformat(match["time"].replace(",", ".") + (zone if zone[:1] in "Z+-" else ""))
    except ValueError:
        return None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def _clock_of_syslog(text: str) -> float | None:
    """No year is in the usual line; 2000 has 29 February."""
    return _clock(f"{text} 2000", "%b %d %H:%M:%S %Y") or _clock(text, "%b %d %Y %H:%M:%S")


def _clock(text: str, form: str) -> float | None:
    try:
        return datetime.strptime(text, form).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None
