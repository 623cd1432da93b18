"""The meaning of the registers in lines of NVLink errors: XID 74 of Hopper, XID 144 to 150 of Blackwell.
Pure.

Facts are of NVIDIA's catalogue of XIDs (Xid-Catalog.xlsx of 2025-09-30): of its sheet "XID 144-150 Decode" as
generated in gpud 4a8de33, and of WORKFLOW_NVLINK_ERR as quoted in NVSentinel's design 019. No line of such a
GPU was at hand (`not_run`). So a meaning may make a fault graver than the word in its line says, and not
milder; what the catalogue does not list is unknown.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from neocloud.fleet.policy.actions import Action
from neocloud.fleet.policy.policy import Severity, Version

SOURCE_5 = "NVIDIA Xid-Catalog.xlsx of 2025-09-30, sheet XID 144-150 Decode, in leptonai/gpud 4a8de33"
SOURCE_74 = "NVIDIA's WORKFLOW_NVLINK_ERR, as quoted in NVSentinel's docs/designs/019-workflow-nvlink-err.md"
CODES_5 = range(144, 151)
MOST_REGISTERS = 16
LAYOUT_CHANGED: Version = (575,)
"""From this driver on, the unit is in the lowest 7 bits of the first register; before, in 10."""
_SUBCODE_SHIFT, _SUBCODE_MASK = 20, 0x3F


@dataclass(frozen=True)
class Meaning:
    """One thing that the registers say."""

    text: str
    says: str
    """The catalogue's word for what to do, or "unknown"."""
    severity: Severity | None = None
    action: Action | None = None
    """The least that follows from it; None: nothing beyond the policy's row."""


@dataclass(frozen=True)
class _Rule:
    code: int
    unit: str
    before: str
    """The lowest bits of the first register with drivers before 575, highest first."""
    since: str
    """The same from 575 on."""
    says: str
    is_fatal: bool
    status: tuple[int, ...]
    """Values of the second register."""
    subcodes: tuple[int, ...] = (0,)
    """Values of bits 20 to 25 of the first register."""
    note: str = ""


_IGNORE, _RESET, _FOLLOW = "IGNORE", "RESET_GPU", "XID_154_EVAL"
_SOFTWARE = 0x80000000
_UNSURE = "the catalogue has RESET_GPU as a second action, on a condition that its table does not say"
_CARTRIDGE = "gpud has the hardware inspected: a cartridge error, or a timeout of the physical layer"
_LINK_DOWN = "0111000110", "0010001"
RULES: tuple[_Rule, ...] = (
    _Rule(144, "SAW_MVB", "0000100001", "0000001", _IGNORE, False, (0x1, 0x4, 0x8, 0x20)),
    _Rule(144, "SAW_MVB", "0000100001", "0000001", _RESET, True, (0x2, 0x10)),
    _Rule(145, "RLW_CTRL", "0001100010", "0000011", _IGNORE, False, (_SOFTWARE,)),
    _Rule(145, "RLW_REMAP", "0010000010", "0000100", _FOLLOW, False, (0x1, 0x2, 0x4, 0x8, 0x10, 0x20)),
    _Rule(145, "RLW_REMAP", "0010000010", "0000100", _RESET, True, (0x40, 0x80)),
    _Rule(145, "RLW_REMAP", "0010000010", "0000100", _IGNORE, False, (0x100, 0x200, _SOFTWARE)),
    _Rule(145, "RLW_RSPCOL", "0010100010", "0000101", _IGNORE, False, (0x1, _SOFTWARE)),
    _Rule(145, "RLW_RSPCOL", "0010100010", "0000101", _RESET, True, (0x2,)),
    _Rule(145, "RLW_RXPIPE", "00011000010", "00000110", _IGNORE, False, (0x1, 0x2, 0x4), note=_UNSURE),
    _Rule(145, "RLW_RXPIPE", "0011000010", "0000110", _IGNORE, False, (0x8, _SOFTWARE)),
    _Rule(145, "RLW_SRC_TRACK", "0011100010", "0000111", _RESET, True, (0x1, 0x10, 0x20)),
    _Rule(145, "RLW_SRC_TRACK", "0011100010", "0000111", _IGNORE, False, (0x2, _SOFTWARE)),
    _Rule(145, "RLW_SRC_TRACK", "0011100010", "0000111", _FOLLOW, False, (0x4, 0x8)),
    _Rule(145, "RLW_TAGSTATE", "0100000010", "0001000", _IGNORE, False, (0x1, 0x10000, _SOFTWARE)),
    _Rule(145, "RLW_TAGSTATE", "0100000010", "0001000", _RESET, True, (0x2, 0x20000, 0x100000)),
    *(
        rule
        for unit, before, since in (
            ("TLW_CTRL", "0100100011", "0001001"),
            ("TLW_RX_PIPE0", "0101000011", "0001010"),
            ("TLW_RX_PIPE1", "0101000011", "0001011"),
            ("TLW_TX_PIPE0", "0101100011", "0001100"),
            ("TLW_TX_PIPE1", "0101100011", "0001101"),
        )
        for rule in (
            _Rule(146, unit, before, since, _IGNORE, False, (0x1, 0x2, _SOFTWARE)),
            _Rule(146, unit, before, since, _RESET, True, (0x4,)),
        )
    ),
    _Rule(147, "TREX", "0110000100", "0001110", _IGNORE, False, (0x1, _SOFTWARE)),
    _Rule(148, "NVLPW_CTRL", "0000000101", "0001111", _IGNORE, False, (_SOFTWARE,)),
    _Rule(149, "NETIR_INT", "0000000110", "0011000", _RESET, True, (0x0,)),
    _Rule(149, "NETIR_BER_EVENT", "1000100110", "0010011", _IGNORE, False, (0x0, 0x1, 0x2, 0x3)),
    _Rule(
        *(149, "NETIR_LINK_DOWN", *_LINK_DOWN, _RESET, True, (0x0,)),
        subcodes=(0, 1, 2, 15, 16, 17, 18, 21, 22, 32, 33, 34, 35, 36, 37, 42, 43),
    ),
    _Rule(149, "NETIR_LINK_DOWN", *_LINK_DOWN, _RESET, True, (0x0,), subcodes=(4, 10), note=_CARTRIDGE),
    _Rule(149, "NETIR_LINK_DOWN", *_LINK_DOWN, _IGNORE, True, (0x0,), subcodes=(38, 40)),
    _Rule(149, "NETIR_MFDE_EVENT", "1001000110", "0010100", _RESET, True, (0x1, 0x4, 0x5, 0x7)),
    _Rule(149, "NETIR_MFDE_EVENT", "1001000110", "0010100", _IGNORE, False, (0x3,)),
    _Rule(150, "MSE_WATCHDOG", "0000000000", "0000000", _RESET, True, (0x0,)),
)

_BITS_74: tuple[tuple[int, tuple[int, ...], str, str], ...] = (
    (0, (0, 23, 30), "ignored safely", _IGNORE),
    (0, (1, 20), "secondary; another fault comes with it", "BUG_IF_ALONE"),
    (0, (4, 5), "ECC or parity of the link", "BUG_IF_MORE_THAN_2"),
    (0, (8, 9, 12, 16, 17, 24, 28), "hardware; check the mechanical connections", "RESEAT"),
    (0, (21, 22), "marginal signal; check the mechanical connections", "RESEAT_IF_ALONE"),
    (0, (27, 29), "counts where it comes repeatedly", "BUG_IF_REPEATED"),
    (2, (0, 1, 2, 6), "ECC or parity of the link", "BUG_IF_MORE_THAN_2"),
    (2, (13,), "not expected in production", "BUG"),
    (2, (16, 19), "counts where it comes repeatedly; run field diagnostics", "DIAGNOSE_IF_REPEATED"),
    (2, (17, 18), "counts where it comes repeatedly", "BUG_IF_REPEATED"),
    (3, (16, 17), "secondary; another fault comes with it", "BUG_IF_ALONE"),
    (3, (18,), "secondary; the fabric has to be reset", "RESET_FABRIC"),
    (4, (18, 19, 21, 22, 24, 25, 27, 28), "ECC or parity of the link", "BUG_IF_MORE_THAN_2"),
    (4, (20, 23, 26, 29), "many corrected errors, none uncorrected", "CONTINUE"),
)
"""Register (the first is 0), bits, meaning and what is said of them. Others are unknown."""
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh")
_UNUSED_74 = (1, 5, 6)
"""Registers that the catalogue does not decode."""


def meanings(code: int, registers: Sequence[int], driver: Version | None = None) -> list[Meaning]:
    """Return what the registers of a line say; nothing for codes whose registers have no known meaning."""
    if code == 74:
        return _nvlink4(registers)
    return _nvlink5(code, registers, driver) if code in CODES_5 else []


def _nvlink5(code: int, registers: Sequence[int], driver: Version | None) -> list[Meaning]:
    if len(registers) < 2:
        return [Meaning("the line has fewer than two registers", "unknown")]
    first, status = registers[0], registers[1]
    subcode = first >> _SUBCODE_SHIFT & _SUBCODE_MASK
    units = [rule for rule in RULES if rule.code == code and _fits(rule, first, driver)]
    found = [rule for rule in units if status in rule.status and subcode in rule.subcodes]
    if not found:
        names = " or ".join(sorted({rule.unit for rule in units})) or "unit unknown"
        return [Meaning(f"{names}, subcode {subcode}, status {status:#x}: no rule", "unknown")]
    if len({rule.says for rule in found}) > 1:
        names = " or ".join(f"{rule.unit} {rule.says}" for rule in found)
        return [Meaning(f"{names}: it takes the driver's version to tell", "unknown")]
    worst = found[0]
    names = " or ".join(sorted({rule.unit for rule in found}))
    word = "fatal" if worst.is_fatal else "non-fatal"
    text = f"{names}, subcode {subcode}, status {status:#x}: {word}"
    severity, action = {
        _RESET: (Severity.FATAL, Action.RESET_GPU),
        _FOLLOW: (Severity.WARNING, Action.RESTART_APP),
    }.get(worst.says, (None, None))
    return [Meaning(f"{text}; {worst.note}" if worst.note else text, worst.says, severity, action)]


def _fits(rule: _Rule, first: int, driver: Version | None) -> bool:
    """Return whether the lowest bits name the unit, in the driver's layout, or in either if none is known."""
    is_old = driver is None or driver < LAYOUT_CHANGED
    is_new = driver is None or driver >= LAYOUT_CHANGED
    return (is_old and _ends_with(first, rule.before)) or (is_new and _ends_with(first, rule.since))


def _ends_with(value: int, bits: str) -> bool:
    return value & ((1 << len(bits)) - 1) == int(bits, 2)


def _nvlink4(registers: Sequence[int]) -> list[Meaning]:
    if len(registers) < len(_ORDINALS):
        return [Meaning(f"the line has fewer than {len(_ORDINALS)} registers", "unknown")]
    found: list[Meaning] = []
    for number, value in enumerate(registers[: len(_ORDINALS)]):
        left = {bit for bit in range(32) if value >> bit & 1}
        for register, bits, text, says in _BITS_74:
            if register == number and (seen := left & set(bits)):
                found.append(Meaning(f"{_place(number, seen)}: {text}", says))
                left -= seen
        if left:
            found.append(Meaning(f"{_place(number, left)}: the catalogue does not say", "unknown"))
    return found or [Meaning("no bit is set", "unknown")]


def _place(register: int, bits: set[int]) -> str:
    numbers = ", ".join(map(str, sorted(bits)))
    return f"{_ORDINALS[register]} register, bit{'s' if len(bits) > 1 else ''} {numbers}"


_HEX = r"0x[0-9a-fA-F]{1,8}"
_LINE_5 = re.compile(rf" XC\d i\d+ Link (-?\d{{1,3}}) \(((?:{_HEX} ?){{2,{MOST_REGISTERS}}})\)")
_LINE_74 = re.compile(rf"NVLink: .{{0,64}}on link (\d{{1,3}}) ?\(((?:{_HEX},? ?){{7}})\)")


def registers_of(message: str) -> tuple[str, tuple[int, ...]] | None:
    """Return the link and the registers in a line, or None. The last in it count: the name of a process comes
    before, and has too few characters to hold registers where the line has none."""
    found = [*_LINE_5.finditer(message), *_LINE_74.finditer(message)]
    if not found:
        return None
    last = max(found, key=lambda match: match.start())
    return last[1], tuple(int(text, 16) for text in re.findall(_HEX, last[2]))
