"""`neo fleet explain` and `neo fleet conflicts`: the fault policy in plain words. They need no cloud."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated

import typer

from neocloud.cli.lazy import command_group
from neocloud.cli.output import Format, JsonObject, OutputOption, View, fields_table, say, show, table
from neocloud.cli.terminal import echo, exit_code
from neocloud.client.errors import ClientError
from neocloud.fleet.policy.actions import Action
from neocloud.fleet.policy.nvlink import MOST_REGISTERS, SOURCE_5, SOURCE_74, meanings
from neocloud.fleet.policy.policy import (
    CodeKind,
    Policy,
    Response,
    Rule,
    Severity,
    Statement,
    Version,
    version_of,
)
from neocloud.fleet.policy.policy_file import default_policy

ACTIONS: Mapping[Action, str] = {
    Action.NONE: "nothing is done on the node",
    Action.RESTART_APP: "the application is restarted",
    Action.RESET_GPU: "the GPU is reset, once no process uses it",
    Action.REBOOT: "the node is rebooted",
    Action.POWER_CYCLE: "the node is switched off and on",
    Action.REIMAGE: "the node is set up again from its image",
    Action.TRIAGE: "the node leaves service, and a person looks at it",
    Action.RMA: "the part goes back to its maker",
}
SEVERITIES: Mapping[Severity, str] = {
    Severity.INFO: "nothing fails; the fault is recorded",
    Severity.WARNING: "the node stays in service; an action on it waits until the node is idle",
    Severity.UNKNOWN: "not known, so neither healthy nor ignored; an action waits until the node is idle",
    Severity.FATAL: "jobs fail or compute wrong results; the node is drained now",
}
LONGEST_CODE = 6
_REGISTER = re.compile(r"(?:0[xX])?[0-9a-fA-F]{1,8}")

app = command_group(
    """Explain a fault: its meaning, the response and the reason for it, and the response of other tools.
    Needs no cloud.

Examples:

  neo fleet explain xid 79
  neo fleet explain sxid 12028
  neo fleet explain kernel soft_lockup
  neo fleet explain counter ib_symbol_error
  journalctl -k -b | neo fleet explain log
"""
)
conflicts_app = command_group()

GpuOption = Annotated[
    str,
    typer.Option(help="Type, model or generation of the GPU: h100, hopper, 'NVIDIA L40S'.", metavar="GPU"),
]
DriverOption = Annotated[
    str, typer.Option(help="Version of the NVIDIA driver: 570.211.01.", metavar="VERSION")
]
NumberArgument = Annotated[str, typer.Argument(help="Code: a number.", metavar="CODE")]


@app.command()
def xid(
    code: NumberArgument,
    gpu: GpuOption = "",
    driver: DriverOption = "",
    registers: Annotated[
        str,
        typer.Option(
            help="Of XID 74 and 144 to 150: the numbers in brackets at the end of the line.",
            metavar="HEX ...",
        ),
    ] = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Explain an XID: a fault that the NVIDIA driver reports of a GPU.

    Registers of NVLink errors are decoded as NVIDIA's catalogue has them; what it does not list is unknown.
    The exit code is 3 for a code that the policy does not know.

    Examples:

      neo fleet explain xid 79
      neo fleet explain xid 149 --gpu b200 --driver 570.211.01 --output json
      neo fleet explain xid 145 --registers "0x040988e2 0x00000008"
    """
    number = _number(code)
    values = _registers(number, registers) if registers else ()
    _explain(CodeKind.XID, number, gpu, driver, output, values)


@app.command()
def sxid(code: NumberArgument, output: OutputOption = Format.TABLE) -> None:
    """Explain an SXID: a fault that the NVIDIA driver reports of an NVSwitch.

    The exit code is 3 for a code that the policy does not know.

    Example:

      neo fleet explain sxid 12028
    """
    _explain(CodeKind.SXID, _number(code), "", "", output)


@app.command()
def kernel(
    name: Annotated[str, typer.Argument(help="Name of the fault; without one, all are listed.")] = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Explain a fault that the kernel reports: of memory, disks, PCIe or network adapters.

    Examples:

      neo fleet explain kernel
      neo fleet explain kernel soft_lockup
    """
    _explain_named(CodeKind.KERNEL, name, "", output)


@app.command()
def counter(
    name: Annotated[str, typer.Argument(help="Name of the counter; without one, all are listed.")] = "",
    gpu: GpuOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Explain a counter of a GPU or link: the value at which it counts as a fault.

    Examples:

      neo fleet explain counter
      neo fleet explain counter ib_symbol_error
    """
    _explain_named(CodeKind.COUNTER, name, gpu, output)


@conflicts_app.command()
def conflicts(output: OutputOption = Format.TABLE) -> None:
    """Show where the sources of the fault policy disagree, our decision, and its reason.

    ABOUT is the subject: `service` is whether the node stays in service, `repair` which step is taken,
    `severity` whether jobs fail, and `limit` the value at which a counter is a fault.

    Examples:

      neo fleet conflicts
      neo fleet conflicts --output json
    """
    policy = default_policy()
    found = policy.conflicts()
    rows = [
        (rule.conflict, rule.kind, codes_text(rule.codes), _ours(rule), _said(rule.statements), rule.why)
        for rule in found
    ]
    document = {"policy": policy_document(policy), "conflicts": [rule_document(rule) for rule in found]}
    show(output, document, table(["ABOUT", "KIND", "CODES", "OURS", "SOURCES", "WHY OURS"], rows))
    if output is Format.TABLE:
        count = sum(len(rule.codes) for rule in found)
        say(f"The sources disagree about {count} codes, in {len(found)} rows; policy of {policy.updated}.")
        for source in policy.sources.values():
            say(f"{source.name}: {source.title}, {source.version}")


def _number(text: str) -> str:
    if not (text.isascii() and text.isdigit() and len(text) <= LONGEST_CODE):
        raise ClientError(
            "INVALID_ARGUMENT", f"{text[:40]!r} is not a code", "Write the number alone, such as 79"
        )
    return str(int(text))


def gpu_and_driver(policy: Policy, gpu: str, driver: str) -> tuple[str, Version | None]:
    """Return the GPU as the policy names it, and the driver. Raises ClientError for a wrong version."""
    name = policy.type_of(gpu) if gpu else ""
    if policy.generation_of(name) is None:
        say(
            f"{name} is of no generation that the policy lists, so rows for certain generations do not apply."
        )
    try:
        return name, version_of(driver) if driver else None
    except ValueError as error:
        raise ClientError("INVALID_ARGUMENT", str(error)) from None


def _registers(code: str, text: str) -> Sequence[int]:
    parts = text.replace("(", " ").replace(")", " ").replace(",", " ").split()
    if not 0 < len(parts) <= MOST_REGISTERS or not all(_REGISTER.fullmatch(part) for part in parts):
        raise ClientError(
            "INVALID_ARGUMENT", f"{text[:80]!r} are no registers", "Write them as in the log: 0x1 0x0"
        )
    if not meanings(int(code), [0] * MOST_REGISTERS):
        raise ClientError(
            "INVALID_ARGUMENT", f"Registers of XID {code} have no known meaning", "Leave them out"
        )
    return [int(part, 16) for part in parts]


def _explain(
    kind: CodeKind, code: str, gpu: str, driver: str, output: Format, registers: Sequence[int] = ()
) -> None:
    policy = default_policy()
    gpu_name, version = gpu_and_driver(policy, gpu, driver)
    response = policy.response_to(kind, code, gpu=gpu_name, driver=version)
    document = response_document(response) | {"policy": policy_document(policy)}
    decoded = meanings(int(code), registers, version) if registers else []
    if decoded:
        document["registers"] = [{"meaning": each.text, "says": each.says} for each in decoded]
    if response.unknown:
        show(output, document, _unknown(response, policy))
        raise typer.Exit(exit_code("NOT_FOUND"))
    if output is not Format.TABLE:
        show(output, document, View(()))
        return
    for number, rule in enumerate(response.rules):
        if number:
            echo()
        show(output, document, _rule_view(rule, f"{kind.upper()} {code}"))
    for each in decoded:
        echo(f"\nREGISTERS: {each.text}; {each.says}")
    if decoded:
        say(f"Decoded by {SOURCE_74 if code == '74' else SOURCE_5}; on such a GPU: not_run.")
    say(f"\nPolicy of {policy.updated}. Where sources disagree: neo fleet conflicts")


def _explain_named(kind: CodeKind, name: str, gpu: str, output: Format) -> None:
    policy = default_policy()
    names = {code: rule for rule in policy.rules if rule.kind is kind for code in rule.codes}
    if not name:
        rows = [(code, rule.name, rule.severity, rule.action) for code, rule in names.items()]
        document = {
            "policy": policy_document(policy),
            "faults": [{"code": each[0], "name": each[1]} for each in rows],
        }
        show(output, document, table(["NAME", "WHAT", "SEVERITY", "ACTION"], rows))
        return
    if name not in names:
        raise ClientError(
            "NOT_FOUND",
            f"{name[:64]!r} is not a {kind} fault of the policy",
            f"Choose from: {', '.join(names)}",
        )
    _explain(kind, name, gpu, "", output)


def _rule_view(rule: Rule, title: str) -> View:
    pairs: list[tuple[str, object]] = [("FAULT", f"{title}: {rule.name}"), ("MEANING", rule.meaning)]
    if applies := _applies(rule):
        pairs.append(("APPLIES TO", applies))
    if rule.limit is not None:
        pairs.append(("LIMIT", rule.limit.text))
    pairs += [
        ("SEVERITY", f"{rule.severity}: {SEVERITIES[rule.severity]}"),
        ("ACTION", f"{rule.action}: {ACTIONS[rule.action]}"),
        ("FAULT OF", rule.scope),
    ]
    pairs += [("THEN", text) for text in _later(rule)]
    pairs += [(f"{each.source.name} says", _statement(each)) for each in rule.statements]
    if rule.conflict is not None:
        pairs.append(("CONFLICT", f"the sources disagree about the {rule.conflict}"))
    if rule.why:
        pairs.append(("WHY", rule.why))
    pairs += [("SOURCE", f"{each.source.title}, {each.source.version}") for each in rule.statements]
    return fields_table(pairs)


def _unknown(response: Response, policy: Policy) -> View:
    source = policy.main_source(response.kind)
    place = source.url if source else "the documentation of its maker"
    return fields_table(
        [
            ("FAULT", f"{response.kind.upper()} {response.code}"),
            ("MEANING", f"{response.unknown}."),
            ("SEVERITY", f"{response.severity}: {SEVERITIES[response.severity]}"),
            ("ACTION", f"{response.action}: {ACTIONS[response.action]}"),
            (
                "NEXT STEP",
                f"Look it up in {place} and report it, so that the policy gets a row.",
            ),
        ]
    )


def _applies(rule: Rule) -> str:
    parts = [", ".join(sorted(rule.generations))] if rule.generations else []
    parts += [f"drivers {rule.drivers.text}"] if rule.drivers.text else []
    parts += [f'lines that say "{rule.detail}"'] if rule.detail else []
    return "; ".join(parts)


def _later(rule: Rule) -> Iterable[str]:
    for each in rule.escalations:
        what = (
            f"{each.count} times {_within(each.within_s)} on one {each.per.replace('_', ' ')}"
            if each.count
            else f"when it lasts {each.lasting_s:g} s"
        )
        yield f"{what}: {each.action} ({each.source.name})"
    if rule.announced_from:
        yield f"from driver {rule.announced_from} on, XID 154 says which step the driver needs, and counts"


def _within(seconds: float | None) -> str:
    return "ever" if seconds is None else f"in {seconds / 3600:g} h"


def _statement(statement: Statement) -> str:
    word = statement.word
    notes = [word.means] if word.means else [f"our step: {word.action}"] if word.action else []
    return f"{word.text} ({'; '.join(notes)})" if notes else word.text


def _said(statements: Sequence[Statement]) -> str:
    return "; ".join(f"{each.source.name} {each.word.text}" for each in statements)


def _ours(rule: Rule) -> str:
    return rule.limit.text if rule.limit else f"{rule.severity}: {rule.action}"


def codes_text(codes: Sequence[str]) -> str:
    """Return "39-41, 70" for codes in order, and names as they are."""
    ranges: list[tuple[str, str]] = []
    for code in codes:
        if ranges and code.isdigit() and int(code) == int(ranges[-1][1]) + 1:
            ranges[-1] = (ranges[-1][0], code)
        else:
            ranges.append((code, code))
    return ", ".join(first if first == last else f"{first}-{last}" for first, last in ranges)


def policy_document(policy: Policy) -> JsonObject:
    sources = [
        {"name": each.name, "title": each.title, "version": each.version, "url": each.url}
        for each in policy.sources.values()
    ]
    return {"updated": policy.updated, "sources": sources}


def response_document(response: Response) -> JsonObject:
    return {
        "kind": response.kind.value,
        "code": response.code,
        "is_known": not response.unknown,
        "severity": response.severity.value,
        "action": response.action.value,
        "reason": response.unknown,
        "rules": [rule_document(rule) for rule in response.rules],
    }


def rule_document(rule: Rule) -> JsonObject:
    said = [
        {
            "source": each.source.name,
            "word": each.word.text,
            "action": each.word.action.value if each.word.action else None,
            "severity": each.word.severity.value if each.word.severity else None,
        }
        for each in rule.statements
    ]
    return {
        "kind": rule.kind.value,
        "codes": list(rule.codes),
        "name": rule.name,
        "meaning": rule.meaning,
        "detail": rule.detail,
        "generations": sorted(rule.generations),
        "drivers": rule.drivers.text,
        "limit": rule.limit.text if rule.limit else "",
        "severity": rule.severity.value,
        "action": rule.action.value,
        "scope": rule.scope.value,
        "later": list(_later(rule)),
        "says": said,
        "conflict": rule.conflict.value if rule.conflict else None,
        "why": rule.why,
    }
