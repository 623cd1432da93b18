"""Every form in which people paste kernel logs is read alike; what is not understood is never called healthy.

The forms are those of dmesg (util-linux), journalctl, rsyslog, busybox, kubectl, docker, grep and their kind.
"""

import json
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neocloud.fleet.policy.kernel_log import KernelFinding, findings
from neocloud.fleet.policy.kernel_log_summary import Summary, summary_of
from neocloud.fleet.policy.pasted_kernel_log import PastedLog
from neocloud.fleet.policy.policy_file import default_policy
from tests.fast.fleet.policy.test_kernel_log import NAMED_LINES, XID_79, XIDS

OFF_BUS = "NVRM: Xid (PCI:0000:9b:00): 79, pid=1234, name=python3, GPU has fallen off the bus."
SXID = "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error"

DMESG = {
    "dmesg": "[12345.678901] ",
    "dmesg, small": "[    0.000001] ",
    "dmesg -T": "[Sun Nov 15 04:48:56 2026] ",
    "dmesg -d": "[12345.678901 <    0.000123>] ",
    "dmesg -d -T": "[Sun Nov 15 04:48:56 2026 <    0.000000>] ",
    "dmesg --time-format delta": "[<    0.000123>] ",
    "dmesg -e, first of a minute": "[Nov15 04:48] ",
    "dmesg -e, first of a minute, short day": "[Nov 5 04:48] ",
    "dmesg -e": "[  +0.000123] ",
    "dmesg -t": "",
    "dmesg --time-format iso": "2026-11-15T04:48:56,123456+00:00 ",
    "dmesg --time-format iso -x": "kern  :err   : 2026-11-15T04:48:56,123456+00:00 ",
    "dmesg -x": "kern  :err   : [12345.678901] ",
    "dmesg -x, warning": "kern  :warn  : [12345.678901] ",
    "dmesg -x -T": "kern  :err   : [Sun Nov 15 04:48:56 2026] ",
    "dmesg -x -t": "kern  :err   : ",
    "dmesg -r": "<3>[12345.678901] ",
    "dmesg -r -t": "<3>",
    "printk caller": "[12345.678901] [ T1234] ",
    "printk caller, processor": "[12345.678901] [    C12] ",
    "printk caller, console": "[12345.678901][ T1234] ",
    "printk caller, -x": "kern  :err   : [12345.678901] [   T1234] ",
    "printk caller, -T": "[Sun Nov 15 04:48:56 2026] [ T1234] ",
    "kmsg": "3,1201,12345678901,-;",
    "kmsg with a caller": "3,1201,12345678901,-,caller=T1234;",
}
JOURNAL = {
    "short": "Nov 15 04:48:56 node7 kernel: ",
    "short, one digit": "Nov  5 04:48:56 node7 kernel: ",
    "short, another language": "Okt 15 04:48:56 node7 kernel: ",
    "short-precise": "Nov 15 04:48:56.123456 node7 kernel: ",
    "short-iso": "2026-11-15T04:48:56+0000 node7 kernel: ",
    "short-iso with a colon": "2026-11-15T04:48:56+01:00 node7 kernel: ",
    "short-iso-precise": "2026-11-15T04:48:56.123456+0000 node7 kernel: ",
    "short-full": "Sun 2026-11-15 04:48:56 UTC node7 kernel: ",
    "short-full of a zone without a name": "Sun 2026-11-15 04:48:56 +03 node7 kernel: ",
    "short-full of Berlin": "Sun 2026-11-15 04:48:56 CET node7 kernel: ",
    "with-unit": "Sun 2026-11-15 04:48:56.123456 UTC node7 kernel: ",
    "short-monotonic": "[12345.678901] node7 kernel: ",
    "short-delta": "[12345.678901 <    0.000123 >] node7 kernel: ",
    "short-unix": "1794718136.123456 node7 kernel: ",
    "--no-hostname": "Nov 15 04:48:56 kernel: ",
    "--no-hostname, iso": "2026-11-15T04:48:56+0000 kernel: ",
    "cat": "",
}
SYSLOG = {
    "traditional": "Nov 15 04:48:56 node7 kernel: [12345.678901] ",
    "with a year": "Nov 15 2026 04:48:56 node7 kernel: ",
    "with a domain": "Nov 15 04:48:56 node7.rack1.example kernel: [12345.678901] ",
    "RFC 3164": "<3>Nov 15 04:48:56 node7 kernel: ",
    "RFC 3339, a program without a colon": "2026-11-15T04:48:56.123456+00:00 node7 kernel ",
    "RFC 3339, a program without a colon, and uptime": (
        "2026-11-15T04:48:56.123456+00:00 node7 kernel [12345.678901] "
    ),
    "RFC 3339": "2026-11-15T04:48:56.123456+00:00 node7 kernel: [12345.678901] ",
    "RFC 3339, caller": "2026-11-15T04:48:56.123456+00:00 node7 kernel: [12345.678901] [ T1234] ",
    "RFC 3339 with a blank": "2026-11-15 04:48:56 node7 kernel: ",
    "RFC 5424": "<3>1 2026-11-15T04:48:56.123456Z node7 kernel - - - ",
    "RFC 5424 with a mark": "<3>1 2026-11-15T04:48:56.123456Z node7 kernel - - - \ufeff",
    "RFC 5424 with data": '<3>1 2026-11-15T04:48:56Z node7 kernel - - [origin@1 a="b \\] c"][x@2] ',
    "RFC 5424 and uptime": "<3>1 2026-11-15T04:48:56.123456Z node7 kernel - - - [12345.678901] ",
    "busybox": "Nov 15 04:48:56 node7 kern.err kernel: [12345.678901] ",
    "no time": "node7 kernel: ",
    "no time and no host": "kernel: ",
}
CARRIERS = {
    "kubectl --timestamps": "2026-11-15T04:48:57.123456789Z ",
    "kubectl --prefix": "[pod/kmsg-x7q2/reader] ",
    "kubectl --prefix --timestamps": "[pod/kmsg-x7q2/reader] 2026-11-15T04:48:57.123456789Z ",
    "docker logs -t": "2026-11-15T04:48:57.123456789Z ",
    "docker compose": "reader-1  | ",
    "a container runtime": "2026-11-15T04:48:57.123456789+00:00 stderr F ",
    "grep -n": "1234:",
    "grep -n, context": "1234-",
    "grep of several files": "/var/log/kern.log.1:",
    "grep -rn": "/var/log/kern.log:1234:",
    "grep -n of a file here": "dmesg.txt:7:",
    "pdsh": "node7: ",
    "srun --label": "0: ",
    "cat -n": "     7\t",
    "ts": "Nov 15 04:48:57 ",
    "colours": "\x1b[32m",
    "colours, in words": "^[[01;31m^[[K",
    "colours without their escape": "[0m",
    "a mark of Unicode": "\ufeff",
    "a quote of a mail": "> ",
    "an indent": "    ",
    "a table of a ticket": "| ",
}
PREFIXES = {**DMESG, **{f"journalctl {key}": each for key, each in JOURNAL.items()}, **SYSLOG}


def faults(text: str | Iterable[str]) -> tuple[list[KernelFinding], PastedLog]:
    log = PastedLog()
    lines = text.splitlines(keepends=True) if isinstance(text, str) else text
    return list(findings(log.records(lines))), log


def meaning(found: Iterable[KernelFinding]) -> list[tuple[object, ...]]:
    return [(each.kind, each.code, each.device, each.detail, each.part, each.text) for each in found]


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
@pytest.mark.parametrize("message", [OFF_BUS, SXID, "EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0"])
def test_each_form_gives_the_same_fault(prefix: str, message: str) -> None:
    found, log = faults(f"{prefix}{message}\n")
    assert meaning(found) == meaning(faults(message)[0]) != []
    assert (log.others, log.not_understood) == (0, 0)


@pytest.mark.parametrize("carrier", CARRIERS.values(), ids=CARRIERS)
def test_what_carries_a_line_changes_nothing(carrier: str) -> None:
    for prefix in PREFIXES.values():
        found, log = faults(f"{carrier}{prefix}{OFF_BUS}\r\n")
        assert [(each.code, each.device) for each in found] == [("79", "0000:9b:00.0")], prefix
        assert not log.not_understood


@given(
    st.sampled_from(["", *CARRIERS.values()]),
    st.sampled_from([*PREFIXES.values()]),
    st.sampled_from([*XIDS, *NAMED_LINES, SXID]),
    st.sampled_from(["\n", "\r\n", "", "\x1b[0m\n", " \n"]),
)
def test_any_prefix_before_any_line_gives_the_finding_of_the_line(
    carrier: str, prefix: str, message: str, end: str
) -> None:
    found, log = faults([f"{carrier}{prefix}{message}{end}"])
    assert meaning(found) == meaning(faults([message])[0]) != []
    assert not log.not_understood


def entry(message: str, **fields: str) -> dict[str, object]:
    given: dict[str, object] = {
        "__CURSOR": "s=0a;i=1", "__REALTIME_TIMESTAMP": "1794718136123456", "_BOOT_ID": "0b",
        "_TRANSPORT": "kernel", "PRIORITY": "3", "SYSLOG_FACILITY": "0", "SYSLOG_IDENTIFIER": "kernel",
        "_HOSTNAME": "node7", "MESSAGE": message,
    }  # fmt: skip
    return {**given, **fields}


def verbose(fields: dict[str, object]) -> str:
    lines = [f"    {name}={value}\n" for name, value in fields.items() if not name.startswith("__")]
    return "Sun 2026-11-15 04:48:56.123456 UTC [s=0a;i=1;b=0b;m=2;t=3;x=4]\n" + "".join(lines)


def json_fields(fields: dict[str, object]) -> list[str]:
    return [f"\t{json.dumps(name)} : {json.dumps(value)}" for name, value in fields.items()]


ENTRIES = {
    "json": lambda fields: json.dumps(fields) + "\n",
    "json-seq": lambda fields: "\x1e" + json.dumps(fields) + "\n",
    "json-sse": lambda fields: f"data: {json.dumps(fields)}\n\n",
    "json-pretty": lambda fields: "{\n" + ",\n".join(json_fields(fields)) + "\n}\n",
    "export": lambda fields: "".join(f"{name}={each}\n" for name, each in fields.items()) + "\n",
    "verbose": verbose,
}  # fmt: skip


@pytest.mark.parametrize("form", ENTRIES)
def test_entries_of_a_journal(form: str) -> None:
    write = ENTRIES[form]
    others = {"_TRANSPORT": "stdout", "SYSLOG_IDENTIFIER": "python3"}
    text = write(entry("usb 1-1: new device")) + write(entry(OFF_BUS)) + write(entry("hello", **others))
    found, log = faults(text)
    assert meaning(found) == meaning(faults(OFF_BUS)[0])
    assert (log.others, log.not_understood) == (1, 0)
    forged, log = faults(write(entry(OFF_BUS, **others)))
    assert not forged and log.not_understood == 1, "a program wrote it: no fault, and a person sees it"


def test_dmesg_in_json_and_messages_as_bytes() -> None:
    rows = ((6, 0.0, "Linux version 6"), (3, 12345.678901, OFF_BUS), (12, 12346.0, XID_79))
    records = [
        f'{{\n         "pri":  {pri},\n         "time":   {time_s:.6f},\n         "msg": "{text}"\n      }}'
        for pri, time_s, text in rows
    ]
    text = '{\n   "dmesg": [\n      ' + ",".join(records) + "\n   ]\n}\n"
    found, log = faults(text)
    assert [(each.device, each.time_s) for each in found] == [("0000:9b:00.0", 12345.678901)]
    assert (log.others, log.not_understood) == (1, 1), "priority 12 is of a program"
    as_bytes = json.dumps({**entry(""), "MESSAGE": [*OFF_BUS.encode(), 7]})
    assert faults(as_bytes)[0][0].device == "0000:9b:00.0"
    container = json.dumps({"log": f"[12345.678901] {OFF_BUS}\n", "stream": "stdout", "time": "2026-11-15"})
    assert meaning(faults(container)[0]) == meaning(faults(OFF_BUS)[0])


def test_a_message_that_syslog_folded() -> None:
    found, log = faults(f"Nov 15 04:48:56 node7 kernel: message repeated 2 times: [ [12345.6] {OFF_BUS}]\n")
    assert meaning(found) == meaning(faults(OFF_BUS)[0]) and not log.not_understood


NOT_UNDERSTOOD = {
    "a program": f"Nov 15 04:48:56 node7 python3[77]: {OFF_BUS}",
    "a program that calls itself kernel, with its number": f"Nov 15 04:48:56 node7 kernel[77]: {OFF_BUS}",
    "another facility, -x": f"user  :err   : [12345.678901] {OFF_BUS}",
    "another facility, raw": f"<12>[12345.678901] {OFF_BUS}",
    "another facility, kmsg": f"12,1201,5123456789,-;{OFF_BUS}",
    "another facility, busybox": f"Nov 15 04:48:56 node7 user.err kernel: {OFF_BUS}",
    "another facility, RFC 5424": f"<11>1 2026-11-15T04:48:56Z node7 kernel - - - {OFF_BUS}",
    "another program, RFC 5424": f"<3>1 2026-11-15T04:48:56Z node7 python3 77 - - {OFF_BUS}",
    "the second line of a program's message": f"Nov 15 04:48:56 node7 a[1]: b\n          {OFF_BUS}",
    "a form of nobody": f"@@ 4711 ## {OFF_BUS}",
    "fields of a comma file": f'"2026-11-15","node7","{OFF_BUS}"',
    "a tool's words": "gpud: XID 79 on GPU 3",
    "words for it in another message": "nvidia 0000:9b:00.0: the device has Fallen off the bus",
    "a switch": "node7 said: SXid 12028",
}


@pytest.mark.parametrize("text", NOT_UNDERSTOOD.values(), ids=NOT_UNDERSTOOD)
def test_words_for_a_fault_that_were_not_understood_are_never_good_news(text: str) -> None:
    found, log = faults(f"[ 1.0] usb 1-1: a device\n{text}\n")
    assert all(each.code == "unreadable" for each in found), "an unknown fault is one"
    assert len(found) + log.not_understood == 1


@pytest.mark.parametrize(
    "text",
    [
        "[ 1.0] RPC: xid 0x1234 in use",
        "[ 1.0] Xid[42]: segfault at 0 ip 00 sp 00 error 4 in a[400000+1000]",
        "[ 1.0] CPU: 3 PID: 42 Comm: Xid Tainted: G",
        '[ 1.0] audit: type=1701 audit(1.0:2): comm="SXid" exe="/x"',
        "[ 1.0] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.159.04",
    ],
)
def test_lines_that_say_nothing_of_a_gpu(text: str) -> None:
    found, log = faults(text + "\n")
    assert not found and not log.not_understood and not log.others


def test_a_gpu_off_the_bus_without_its_first_line() -> None:
    found, _ = faults("[ 1.0] NVRM: fallen off the bus and is not responding to commands.\n")
    assert [(each.code, each.device) for each in found] == [("79", "")]


def summary(text: str) -> Summary:
    return summary_of(PastedLog().records(text.splitlines(keepends=True)), default_policy())


@pytest.mark.parametrize(
    ("first", "soon", "later"),
    [
        ("[Nov15 04:48] ", "[ +10.000000] ", "[+7000.000000] "),
        ("[12345.6] [ T12] ", "[12355.6] [ T12] ", "[19999.6] [ T12] "),
        ("2026-11-15T04:48:56,123456+00:00 ", "2026-11-15T04:49:06,1+00:00 ", "2026-11-15T06:48:56,1+00:00 "),
        ("1794718136.123 node7 kernel: ", "1794718146.123 node7 kernel: ", "1794728136.123 node7 kernel: "),
        (
            "Sun 2026-11-15 04:48:56 UTC n kernel: ", "Sun 2026-11-15 04:49:06 UTC n kernel: ",
            "Sun 2026-11-15 06:48:56 UTC n kernel: ",
        ),
    ],
)  # fmt: skip
def test_times_tell_a_burst_from_a_fault_that_came_again(first: str, soon: str, later: str) -> None:
    (fault,) = summary("".join(f"{each}{OFF_BUS}\n" for each in (first, soon, later))).faults
    assert (fault.lines, len(fault.times)) == (3, 2)


PIECES = st.text(max_size=80) | st.sampled_from([*PREFIXES.values(), *CARRIERS.values(), *XIDS])


@given(st.lists(PIECES, max_size=12))
def test_any_text_is_read_without_an_error(parts: list[str]) -> None:
    lines = "\n".join(parts)
    for text in ("".join(parts), lines, "{\n" + lines, "__CURSOR=a\n" + lines):
        faults(text)
        faults([text])


VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=40)


@given(
    st.dictionaries(
        st.sampled_from([*entry(""), "msg", "log", "pri", "fac", "time"]),
        VALUES | st.lists(st.integers(-1, 300), max_size=5),
    )
)
def test_any_entry_is_read_without_an_error(fields: dict[str, object]) -> None:
    for write in ENTRIES.values():
        faults(write(fields))
