"""`neo fleet explain` and `neo fleet conflicts`: without a cloud, for people and programs."""

import io
import json
from pathlib import Path

import pytest

from neocloud.cli.main import run
from tests.fast.cli.conftest import Neo


def test_a_fault_is_explained_without_a_cloud(neo: Neo) -> None:
    ran = neo("fleet", "explain", "xid", "79")
    assert ran.code == 0
    assert "XID 79: GPU has fallen off the bus" in ran.out
    assert "reboot: the node is rebooted" in ran.out
    assert "leptonai/gpud, 4a8de33" in ran.out


def test_a_conflict_is_named_with_both_sides_and_our_reason(neo: Neo) -> None:
    ran = neo("fleet", "explain", "xid", "63")
    assert "nvidia says" in ran.out and "fatal: RebootSystem + HardwareInspection" in ran.out
    assert "the sources disagree about the service" in ran.out
    assert "WHY" in ran.out


def test_an_unknown_code_says_so_with_the_next_step(neo: Neo) -> None:
    ran = neo("fleet", "explain", "xid", "9999")
    assert ran.code == 3
    assert "unknown: not known, so neither healthy nor ignored" in ran.out
    assert "NEXT STEP" in ran.out and "docs.nvidia.com/deploy/xid-errors" in ran.out
    assert "fabric-manager-user-guide.pdf" in neo("fleet", "explain", "sxid", "9999").out


def test_programs_get_the_same_as_json(neo: Neo) -> None:
    known = json.loads(neo("fleet", "explain", "xid", "79", "-o", "json").out)
    assert (known["is_known"], known["severity"], known["action"]) == (True, "fatal", "reboot")
    said = {each["source"]: each["action"] for each in known["rules"][0]["says"]}
    assert said == {"nvidia": "reboot", "gpud": "reboot", "nvsentinel": "reboot"}
    unknown = json.loads(neo("fleet", "explain", "xid", "9999", "-o", "json").out)
    assert (unknown["is_known"], unknown["severity"], unknown["rules"]) == (False, "unknown", [])


def test_gpu_and_driver_choose_the_row(neo: Neo) -> None:
    assert neo("fleet", "explain", "xid", "74", "--gpu", "NVIDIA H100 80GB HBM3").code == 0
    other = neo("fleet", "explain", "xid", "74", "--gpu", "b200")
    assert other.code == 3 and "none for this GPU" in other.out and "only for ampere, hopper" in other.out
    assert neo("fleet", "explain", "xid", "79", "--driver", "newest").code == 2


def test_what_is_no_code_is_refused(neo: Neo) -> None:
    for text in ("seventy", "7" * 50, "-1"):
        assert neo("fleet", "explain", "xid", text).code == 2
    refused = neo("fleet", "explain", "kernel", "soft_lookup")
    assert refused.code == 3 and "soft_lockup" in refused.err


def test_faults_with_names_are_listed(neo: Neo) -> None:
    assert "filesystem_read_only" in neo("fleet", "explain", "kernel").out
    assert "over 120 per 1h" in neo("fleet", "explain", "counter", "ib_symbol_error").out


def test_the_conflict_report(neo: Neo) -> None:
    ran = neo("fleet", "conflicts")
    assert ran.code == 0
    assert "The sources disagree about" in ran.err and "NVIDIA/NVSentinel" in ran.err
    document = json.loads(neo("fleet", "conflicts", "-o", "json").out)
    rules = document["conflicts"]
    assert all(rule["why"] and rule["conflict"] and len(rule["says"]) > 1 for rule in rules)
    assert next(rule for rule in rules if "119" in rule["codes"])["conflict"] == "repair"


def test_the_faults_in_a_kernel_log(neo: Neo, tmp_path: Path) -> None:
    path = tmp_path / "dmesg.txt"
    path.write_bytes(
        b"[   10.5] NVRM: Xid (PCI:0000:18:00): 79, pid=1, name=\x1b]0;evil\x07, off the bus\n"
        b"[   11.5] NVRM: Xid (PCI:0000:19:00): 999, new\n"
        b"Jan  5 18:28:55 node1 evil[77]: NVRM: Xid (PCI:0000:20:00): 48, forged\n" + b"\xff" * 9000
    )
    ran = neo("fleet", "explain", "log", str(path))
    assert ran.code == 0
    first, second = ran.out.splitlines()[1:]
    assert first.split()[:6] == ["XID", "79", "0000:18:00.0", "1", "fatal", "reboot"]
    assert "unknown" in second and "Unknown faults are not healthy" in ran.err
    document = json.loads(neo("fleet", "explain", "log", str(path), "-o", "json").out)
    assert [(each["code"], each["action"]) for each in document["faults"]] == [
        ("79", "reboot"),
        ("999", "triage"),
    ]
    assert (
        "\\x1b]0;evil\\x07" in document["faults"][0]["text"] and "\x1b" not in document["faults"][0]["text"]
    )


def test_a_kernel_log_from_standard_input(neo: Neo, monkeypatch: pytest.MonkeyPatch) -> None:
    data = io.BytesIO(b"[   10.5] EXT4-fs (md0): Remounting filesystem read-only\n")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(data))
    assert "filesystem_read_only   md0" in neo("fleet", "explain", "log").out


def test_a_line_that_was_not_understood_is_counted_and_never_no_fault(neo: Neo, tmp_path: Path) -> None:
    path = tmp_path / "strange.txt"
    line = "NVRM: Xid (PCI:0000:18:00): 79, pid=1, GPU has fallen off the bus."
    path.write_text(f"[ 1.0] usb 1-1: new device\nJan  5 18:28:55 node1 evil[77]: {line}\x07\n@@ SXid @@\n")
    ran = neo("fleet", "explain", "log", str(path))
    said = " ".join((ran.out + ran.err).split())
    assert ran.code == 0 and "No fault" not in said
    assert "1 line with the words for a fault of a GPU could not be understood" in said
    assert "The first: Jan 5 18:28:55 node1 evil[77]: NVRM" in said and "\x07" not in ran.err
    assert "SXID unreadable" in ran.out, "without a prefix it counts as the kernel's, and is unknown"
    document = json.loads(neo("fleet", "explain", "log", str(path), "-o", "json").out)
    assert document["not_understood"] == 1 and "evil[77]" in document["not_understood_lines"][0]
    path.write_text("[ 1.0] usb 1-1: new device\n")
    assert "No fault that the policy knows of." in neo("fleet", "explain", "log", str(path)).err


def test_a_gpu_off_the_bus_in_the_form_of_a_container(neo: Neo, tmp_path: Path) -> None:
    path = tmp_path / "pod.txt"
    line = "NVRM: Xid (PCI:0000:9b:00): 79, pid=1234, name=python3, GPU has fallen off the bus."
    path.write_text(f"[pod/a/b] 2026-11-15T04:48:57.123456789Z [12345.678901] [ T1234] {line}\r\n")
    ran = neo("fleet", "explain", "log", str(path))
    assert ran.out.splitlines()[1].split()[:3] == ["XID", "79", "0000:9b:00.0"]
    assert "could not be understood" not in ran.err


def test_records_that_are_missing_are_no_good_news(neo: Neo, tmp_path: Path) -> None:
    path = tmp_path / "kmsg.txt"
    path.write_text("6,0,100,-;a\n6,1,200,-;b\n6,5,300,-;c\n SUBSYSTEM=pci\n")
    ran = neo("fleet", "explain", "log", str(path), "-o", "json")
    assert json.loads(ran.out)["lost_records"] == 3
    assert "3 records are missing" in ran.err


def test_a_file_that_is_no_kernel_log(neo: Neo, tmp_path: Path) -> None:
    path = tmp_path / "other.txt"
    path.write_text("Jan  5 18:28:55 node1 sshd[1]: hello\n")
    assert "There is no line of the kernel in it" in neo("fleet", "explain", "log", str(path)).err
    assert neo("fleet", "explain", "log", str(tmp_path)).code == 3


def test_registers_of_nvlink_errors_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fleet", "explain", "xid", "145", "--registers", "(0x040988e2 0x8 0x0)", "-o", "json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["registers"]
    assert found == {"meaning": "RLW_SRC_TRACK, subcode 0, status 0x8: non-fatal", "says": "XID_154_EVAL"}
    assert run(["fleet", "explain", "xid", "74", "--registers", "0x4,0,0,0,0,0,0"]) == 0
    shown = capsys.readouterr()
    assert "first register, bit 2: the catalogue does not say; unknown" in shown.out
    assert "not_run" in shown.err


@pytest.mark.parametrize(
    ("code", "text"), [("79", "0x1"), ("145", "0x123456789"), ("145", "x"), ("145", "0 " * 17)]
)
def test_registers_that_are_none_are_refused(
    code: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["fleet", "explain", "xid", code, "--registers", text]) == 2
    assert "egisters" in capsys.readouterr().err
