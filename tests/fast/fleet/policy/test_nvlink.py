"""Registers of NVLink errors: what NVIDIA's catalogue says of them, and nothing that it does not say."""

import pytest

from neocloud.fleet.policy.actions import Action
from neocloud.fleet.policy.kernel_log_line import pasted
from neocloud.fleet.policy.kernel_log_summary import MOST_MEANINGS, Fault, summary_of
from neocloud.fleet.policy.nvlink import RULES, meanings, registers_of
from neocloud.fleet.policy.policy import Severity
from neocloud.fleet.policy.policy_file import default_policy

OLD, NEW = (570, 211), (580, 82)


def line(code: int, unit: str, word: str, registers: str, link: str = "12") -> str:
    return f"NVRM: Xid (PCI:0018:01:00): {code}, {unit} {word} XC1 i0 Link {link} ({registers})"


def fault_of(*lines: str, gpu: str = "b200") -> Fault:
    records = [record for each in lines if (record := pasted(each).record)]
    (fault,) = summary_of(records, default_policy(), gpu=gpu).faults
    return fault


def test_the_table_has_all_rules_of_the_catalogue() -> None:
    assert sum(len(rule.status) * len(rule.subcodes) for rule in RULES) == 94
    fatal = [rule for rule in RULES if rule.is_fatal and rule.says == "IGNORE"]
    assert [rule.subcodes for rule in fatal] == [(38, 40)], "all other fatal ones reset the GPU"


@pytest.mark.parametrize(
    ("code", "registers", "driver", "unit", "says"),
    [
        (145, (0x040988E2, 0x8), OLD, "RLW_SRC_TRACK", "XID_154_EVAL"),  # as in gpud's recorded line
        (145, (0x000000E2, 0x1), OLD, "RLW_SRC_TRACK", "RESET_GPU"),
        (145, (0x00000007, 0x1), NEW, "RLW_SRC_TRACK", "RESET_GPU"),
        (145, (0x00000082, 0x1), OLD, "RLW_REMAP", "XID_154_EVAL"),  # the same status, another unit
        (149, (0x004505C6, 0x0), OLD, "NETIR_LINK_DOWN", "RESET_GPU"),
        (149, (0x02600011, 0x0), NEW, "NETIR_LINK_DOWN", "IGNORE"),  # subcode 38
        (150, (0x0, 0x0), NEW, "MSE_WATCHDOG", "RESET_GPU"),
        (144, (0x00000021, 0x2), OLD, "SAW_MVB", "RESET_GPU"),
        (144, (0x00000021, 0x40), OLD, "SAW_MVB", "unknown"),  # a status without a rule
        (145, (0x01100007, 0x1), NEW, "RLW_SRC_TRACK", "unknown"),  # a subcode without a rule
        (145, (0x000003FF, 0x1), OLD, "unit unknown", "unknown"),
        (145, (0x000000E2, 0x1), NEW, "unit unknown", "unknown"),  # the layout of older drivers
        (145, (0x1,), OLD, "fewer than two", "unknown"),
    ],
)
def test_a_rule_is_found_by_unit_subcode_and_status(
    code: int, registers: tuple[int, ...], driver: tuple[int, ...], unit: str, says: str
) -> None:
    (found,) = meanings(code, registers, driver)
    assert unit in found.text and found.says == says
    assert (found.action is Action.RESET_GPU) is (says == "RESET_GPU")


def test_without_a_driver_both_layouts_count_and_a_contradiction_is_unknown() -> None:
    assert meanings(145, (0x040988E2, 0x8))[0].says == "XID_154_EVAL"
    both = 0b0010000010 | 0  # RLW_REMAP before 575; its lowest 7 bits are no unit since
    assert meanings(145, (both, 0x40))[0].says == "RESET_GPU"
    for first in range(1 << 10):
        for status in (0x0, 0x1, 0x2, 0x4, 0x8, 0x10, 0x80000000):
            for code in range(144, 151):
                (found,) = meanings(code, (first, status))
                sides = {
                    each.says for driver in (OLD, NEW) for each in meanings(code, (first, status), driver)
                }
                assert found.says in sides | {"unknown"}
                if found.says == "RESET_GPU":
                    assert sides <= {"RESET_GPU", "unknown"}


@pytest.mark.parametrize(
    ("registers", "text", "says"),
    [
        ((0x10, 0, 0, 0, 0, 0, 0), "first register, bit 4: ECC", "BUG_IF_MORE_THAN_2"),
        ((0x1100, 0, 0, 0, 0, 0, 0), "first register, bits 8, 12: hardware", "RESEAT"),
        ((0, 0, 0x10000, 0, 0, 0, 0), "third register, bit 16", "DIAGNOSE_IF_REPEATED"),
        ((0, 0, 0, 0x40000, 0, 0, 0), "fourth register, bit 18", "RESET_FABRIC"),
        ((0, 0, 0, 0, 0x100000, 0, 0), "fifth register, bit 20", "CONTINUE"),
        ((0x4, 0, 0, 0, 0, 0, 0), "first register, bit 2: the catalogue does not say", "unknown"),
        ((0, 0x1, 0, 0, 0, 0, 0), "second register, bit 0: the catalogue does not say", "unknown"),
        ((0,) * 7, "no bit is set", "unknown"),
        ((0x1,) * 3, "fewer than 7", "unknown"),
    ],
)
def test_bits_of_xid_74_have_the_meaning_of_the_catalogue(
    registers: tuple[int, ...], text: str, says: str
) -> None:
    (found,) = meanings(74, registers)
    assert text in found.text and found.says == says and found.action is None


def test_codes_without_registers_have_no_meaning() -> None:
    assert meanings(79, (1, 2)) == [] and meanings(0, (1, 2)) == []


def test_registers_make_a_line_graver_and_never_milder() -> None:
    mild = fault_of(line(145, "RLW_SRC_TRACK", "Nonfatal", "0x000000e2 0x00000002"))
    assert (mild.severity, mild.action) == (Severity.WARNING, Action.RESTART_APP), "the row, not IGNORE"
    assert mild.registers == ["link 12: RLW_SRC_TRACK, subcode 0, status 0x2: non-fatal; IGNORE"]
    grave = fault_of(line(145, "RLW_SRC_TRACK", "Nonfatal", "0x000000e2 0x00000010"))
    assert (grave.severity, grave.action) == (Severity.FATAL, Action.RESET_GPU)
    assert "registers of link 12" in grave.because[0]


def test_each_link_of_a_burst_is_decoded_and_their_number_is_bounded() -> None:
    fault = fault_of(*(line(149, "NETIR", "Fatal", "0x004505c6 0x0", str(n)) for n in range(18)))
    assert len(fault.registers) == 18 and fault.registers[17].startswith("link 17: NETIR_LINK_DOWN")
    many = fault_of(*(line(149, "NETIR", "Fatal", f"0x004505c6 {n:#x}") for n in range(200)))
    assert len(many.registers) == MOST_MEANINGS


def test_a_line_of_xid_74_is_decoded() -> None:
    said = "pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 14"
    said += "(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)"
    fault = fault_of(f"NVRM: Xid (PCI:0003:00:00): 74, {said}", gpu="h100")
    assert fault.registers[0].startswith("link 14: third register, bit 16")
    assert fault.severity is Severity.FATAL


@pytest.mark.parametrize(
    "text",
    [
        "",
        " XC0 i0 Link 1 (0x0)",
        " XC0 i0 Link 1 (0x0 0x123456789)",
        " XC0 i0 Link 1 (" + "0x0 " * 17 + ")",
        "NVLink: on link 1(0x0, 0x0)",
        " XC0 i0 Link 99999 (0x0 0x0)",
    ],
)
def test_lines_without_registers_or_with_too_many_are_not_decoded(text: str) -> None:
    assert registers_of(text) is None


def test_a_name_of_a_process_cannot_stand_for_registers() -> None:
    """The kernel keeps 15 characters of a name; the shortest registers take more."""
    name = " XC0 i0 Link 1 (0x0 0x0)"
    assert len(name) > 15
    real = line(145, f"pid=1, name={name}, RLW_CTRL", "Nonfatal", "0x00000062 0x80000000")
    assert registers_of(real) == ("12", (0x62, 0x80000000)), "the last counts"


def test_a_long_line_takes_no_time() -> None:
    assert registers_of("NVLink: on link 1(" * 200 + " XC0 i0 Link 1 (" * 200 + "0x0 " * 800) is None
