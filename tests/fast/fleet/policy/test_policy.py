"""The fault policy: its file, how it is read and refused, and what it says of a fault. HEALTH-01."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neocloud.fleet.policy.actions import Action
from neocloud.fleet.policy.policy import CodeKind, Conflict, Severity, version_of
from neocloud.fleet.policy.policy_file import PolicyError, default_policy, load_policy

POLICY = default_policy()

SMALL = """version: 1
updated: 2026-11-27
sources:
  maker:
    title: The maker's list
    version: first
    words:
      IGNORE: {action: none}
      RESET: {action: reset_gpu, severity: fatal}
  other: {title: Another list, version: second, words: {reboot: {action: reboot, severity: fatal}}}
generations:
  hopper: [h100]
rules:
- xid: [1-3, 9]
  name: A fault
  severity: fatal
  action: reboot
  scope: gpu
  meaning: Something fails.
  says: {maker: RESET, other: reboot}
  why: The other has no reset.
"""


def changed(old: str, new: str) -> str:
    assert SMALL.count(old) == 1
    return SMALL.replace(old, new)


def test_all_codes_of_the_catalogue_have_a_row() -> None:
    """NVIDIA lists 1 to 172; gpud has 173 too."""
    missing = [code for code in range(1, 174) if not POLICY.rows(CodeKind.XID, str(code))]
    assert not missing


def test_what_is_done_about_well_known_faults() -> None:
    done = {
        code: POLICY.response_to(CodeKind.XID, code).action for code in ("13", "48", "63", "79", "94", "119")
    }
    assert done == {
        "13": Action.RESTART_APP,
        "48": Action.RESET_GPU,
        "63": Action.NONE,
        "79": Action.REBOOT,
        "94": Action.RESET_GPU,
        "119": Action.RESET_GPU,
    }
    assert POLICY.response_to(CodeKind.XID, "94").severity is Severity.WARNING, (
        "it waits until the node is idle"
    )
    assert POLICY.response_to(CodeKind.SXID, "23001").action is Action.REBOOT


def test_a_code_without_a_row_is_unknown_and_no_good_news() -> None:
    response = POLICY.response_to(CodeKind.XID, "9999")
    assert (response.severity, response.action) == (Severity.UNKNOWN, Action.TRIAGE)
    assert Severity.UNKNOWN.rank > Severity.INFO.rank
    assert response.unknown == "The policy has no row for xid 9999"


def test_a_code_is_unknown_on_gpus_that_no_row_is_for() -> None:
    """XID 149 is of NVLink 5, which Hopper does not have; 74 is of the NVLink before."""
    assert POLICY.response_to(CodeKind.XID, "149", gpu="b200", detail="fatal").action is Action.RESET_GPU
    assert POLICY.response_to(CodeKind.XID, "149", gpu="h100", detail="fatal").severity is Severity.UNKNOWN
    assert POLICY.response_to(CodeKind.XID, "74", gpu="blackwell").severity is Severity.UNKNOWN
    assert POLICY.response_to(CodeKind.XID, "74", gpu="h200").action is Action.RESET_GPU
    assert POLICY.response_to(CodeKind.XID, "79", gpu="t4").action is Action.REBOOT, "a row for all GPUs"


def test_a_model_names_its_type() -> None:
    models = ("NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe", "GB200", "hopper", "Grace-Blackwell", "Tesla T4")
    named = ["h100", "h100-pcie", "gb200", "hopper", "grace-blackwell", "tesla t4"]
    assert [POLICY.type_of(model) for model in models] == named


def test_of_several_rows_the_gravest_counts() -> None:
    """Without the word in the line, an NVLink 5 error is taken for fatal."""
    both = POLICY.response_to(CodeKind.XID, "144")
    assert len(both.rules) == 2 and both.severity is Severity.FATAL
    assert POLICY.response_to(CodeKind.XID, "144", detail="nonfatal").severity is Severity.INFO


def test_a_line_that_says_fatal_outranks_a_mild_row_or_none() -> None:
    mild = POLICY.response_to(CodeKind.SXID, "12028")
    assert mild.severity is Severity.WARNING
    assert POLICY.response_to(CodeKind.SXID, "12028", detail="fatal").severity is Severity.FATAL
    assert POLICY.response_to(CodeKind.SXID, "99999", detail="fatal").action is Action.REBOOT
    assert POLICY.response_to(CodeKind.SXID, "99999", detail="nonfatal").severity is Severity.UNKNOWN


def test_rows_for_some_drivers() -> None:
    old = changed("  name: A fault", '  drivers: "<575"\n  name: A fault')
    policy = load_policy(old, "small.yaml")
    assert policy.response_to(CodeKind.XID, "9", driver=version_of("570.211.01")).action is Action.REBOOT
    assert policy.response_to(CodeKind.XID, "9", driver=version_of("575")).severity is Severity.UNKNOWN
    both = load_policy(old + old[old.index("- xid") :].replace("<575", ">=575"), "small.yaml")
    assert len(both.response_to(CodeKind.XID, "9").rules) == 2


def test_conflicts_have_a_reason_and_say_what_they_are_about() -> None:
    found = POLICY.conflicts([CodeKind.XID])
    about = {code: rule.conflict for rule in found for code in rule.codes}
    assert about["63"] is Conflict.SERVICE, "gpud reboots, NVIDIA ignores"
    assert about["119"] is Conflict.REPAIR, "gpud has no reset"
    assert "79" not in about, "all reboot"
    assert all(rule.why for rule in found)
    order = [list(Conflict).index(rule.conflict) for rule in found if rule.conflict]
    assert order == sorted(order), "the gravest first"


def test_every_statement_has_a_source_with_a_version() -> None:
    for rule in POLICY.rules:
        assert rule.statements or rule.why
        assert all(each.source.version for each in rule.statements)


WRONG = {
    "a field that is not known": ("  scope: gpu", "  scope: gpu\n  colour: red", "line 19: 'colour'"),
    "a field that is missing": ("  scope: gpu\n", "", "line 14: 'scope' is missing"),
    "an action that is none": ("action: reboot\n  scope", "action: pray\n  scope", "line 17: 'pray' is no"),
    "a word that the source has not": ("maker: RESET,", "maker: EXPLODE,", "'EXPLODE' is not one"),
    "a source that is not listed": ("other: reboot}\n  why", "nobody: reboot}\n  why", "'nobody' is not"),
    "a conflict without a reason": ("  why: The other has no reset.\n", "", "disagree about the repair"),
    "the same code twice": ("[1-3, 9]", "[1-3, 2]", "one twice"),
    "a range that is endless": ("[1-3, 9]", "[1-999999]", "line 14: '1-999999' is not a range"),
    "a name as an XID": ("[1-3, 9]", "[seven]", "'seven' is not a code of xid"),
    "the same key twice": ("  scope: gpu", "  scope: gpu\n  scope: link", "'scope' is in line 18 already"),
    "another format": ("version: 1\n", "version: 2\n", "line 1: the format is not version 1"),
    "a generation that is not listed": ("  scope: gpu", "  scope: gpu\n  generations: [fermi]", "line 19"),
    "a range of drivers": ("  scope: gpu", '  scope: gpu\n  drivers: "new"', "line 19: 'new' is not a range"),
    "unknown as severity": ("severity: fatal\n  action", "severity: unknown\n  action", "leave the row out"),
    "text that is no YAML": ("- xid: [1-3, 9]", "- xid: [1-3, 9", "small.yaml, line"),
    "a list instead of names": ("generations:\n  hopper: [h100]", "generations: [h100]", "names with values"),
    "an endless limit": ("  scope: gpu", "  scope: gpu\n  limit: over 1", "a counter has a limit"),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_file_is_refused_with_file_line_and_reason(old: str, new: str, message: str) -> None:
    with pytest.raises(PolicyError) as refused:
        load_policy(changed(old, new), "small.yaml")
    assert str(refused.value).startswith("small.yaml, line ")
    assert message in str(refused.value)


def test_two_rows_for_the_same_lines_are_refused() -> None:
    row = SMALL[SMALL.index("- xid") :]
    with pytest.raises(PolicyError, match=r"line 22: xid 1 is in the row of line 14 too"):
        load_policy(SMALL + row, "small.yaml")


@given(st.text(max_size=300) | st.text(alphabet="-:[]{}&*!|>'\"\n xid1?,", max_size=300))
def test_any_text_is_read_or_refused_by_a_policy_error(text: str) -> None:
    for whole in (text, SMALL + text, SMALL.replace("[1-3, 9]", text)):
        try:
            load_policy(whole, "fuzz.yaml")
        except PolicyError as error:
            assert str(error).startswith("fuzz.yaml, line ")


@pytest.mark.parametrize("text", ["", "new", "570.", "1.2.3.4.5", "570\n1", "９"])
def test_what_is_no_driver_version(text: str) -> None:
    with pytest.raises(ValueError, match="is not a driver version"):
        version_of(text)
