"""The fault policy as JSON, for hosts without a reader of YAML: what the agent needs of it.

It is written into the agent's archive, from the policy of the release that builds it.
"""

import json
from importlib.resources import files
from typing import Any

from neocloud.fleet.policy.actions import Action
from neocloud.fleet.policy.policy import (
    CodeKind,
    DriverRange,
    Escalation,
    FaultScope,
    Limit,
    Per,
    Policy,
    PolicySource,
    Repetition,
    Rule,
    Severity,
    Statement,
    Word,
)

FILE = "policy.json"


def load_policy() -> Policy:
    """Return the policy of this release: from the archive where the agent runs from one."""
    place = files("neocloud.fleet.agent").joinpath(FILE)
    if place.is_file():
        return from_json(place.read_text(encoding="utf-8"))
    from neocloud.fleet.policy.policy_file import default_policy  # noqa: PLC0415 - needs PyYAML

    return default_policy()


def to_json(policy: Policy) -> str:
    document = {
        "updated": policy.updated,
        "burst_s": policy.burst_s,
        "generations": {name: sorted(types) for name, types in policy.generations.items()},
        "sources": {each.name: [each.title, each.version, each.url] for each in policy.sources.values()},
        "rules": [_rule_json(each) for each in policy.rules],
        "repetition": [_repetition_json(each) for each in policy.repetition],
    }
    return json.dumps(document, separators=(",", ":"))


def from_json(text: str) -> Policy:
    """Return the policy that `to_json` wrote; without words of sources, which only people read."""
    given: dict[str, Any] = json.loads(text)
    sources = {name: PolicySource(name, *each) for name, each in given["sources"].items()}
    return Policy(
        given["updated"],
        sources,
        {name: frozenset(types) for name, types in given["generations"].items()},
        [_rule(each, sources) for each in given["rules"]],
        [_repetition(each, sources) for each in given["repetition"]],
        given["burst_s"],
    )


def _rule_json(rule: Rule) -> dict[str, Any]:
    return {
        "kind": rule.kind,
        "codes": rule.codes,
        "name": rule.name,
        "severity": rule.severity,
        "action": rule.action,
        "scope": rule.scope,
        "detail": rule.detail,
        "generations": sorted(rule.generations),
        "drivers": [rule.drivers.least, rule.drivers.before, rule.drivers.text],
        "announced_from": rule.announced_from,
        "limit": [rule.limit.is_above, rule.limit.number, rule.limit.per_s, rule.limit.text]
        if rule.limit
        else None,
        "says": [[each.source.name, each.word.text] for each in rule.statements],
        "escalations": [
            [
                each.action,
                each.source.name,
                each.severity,
                each.count,
                each.within_s,
                each.per,
                each.lasting_s,
            ]
            for each in rule.escalations
        ],
        "line": rule.line,
    }


def _rule(given: dict[str, Any], sources: dict[str, PolicySource]) -> Rule:
    least, before, text = given["drivers"]
    return Rule(
        kind=CodeKind(given["kind"]),
        codes=tuple(given["codes"]),
        name=given["name"],
        meaning="",
        severity=Severity(given["severity"]),
        action=Action(given["action"]),
        scope=FaultScope(given["scope"]),
        detail=given["detail"],
        generations=frozenset(given["generations"]),
        drivers=DriverRange(tuple(least), None if before is None else tuple(before), text),
        announced_from=given["announced_from"],
        limit=Limit(*given["limit"]) if given["limit"] else None,
        statements=tuple(Statement(sources[name], Word(word)) for name, word in given["says"]),
        escalations=tuple(_escalation(each, sources) for each in given["escalations"]),
        line=given["line"],
    )


def _escalation(given: list[Any], sources: dict[str, PolicySource]) -> Escalation:
    action, source, severity, count, within_s, per, lasting_s = given
    graver = Severity(severity) if severity else None
    return Escalation(Action(action), sources[source], graver, count, within_s, Per(per), lasting_s)


def _repetition_json(each: Repetition) -> list[Any]:
    return [
        *(each.name, each.kind, each.count, each.within_s),
        *(each.per, each.action, each.source.name, each.severity),
    ]


def _repetition(given: list[Any], sources: dict[str, PolicySource]) -> Repetition:
    name, kind, count, within_s, per, action, source, severity = given
    graver = Severity(severity) if severity else None
    return Repetition(name, kind, count, within_s, Per(per), Action(action), sources[source], graver)
