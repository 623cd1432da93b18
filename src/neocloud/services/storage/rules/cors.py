# pyright: strict
"""Validation rules of the CORS rules of a bucket."""

from collections.abc import Iterable

from neocloud.core.kind import Violation
from neocloud.messages.nebius.storage.v1 import CORSConfiguration, CORSRule

METHODS = ("GET", "PUT", "POST", "DELETE", "HEAD")
MAX_ID = 255


def cors_violations(cors: CORSConfiguration) -> Iterable[Violation]:
    seen = set[str]()
    for number, rule in enumerate(cors.rules):
        path = f"spec.cors.rules[{number}]"
        yield from _rule_violations(rule, path)
        if rule.id and rule.id in seen:
            yield Violation(f"{path}.id", f"is {rule.id!r} a second time; each must be another")
        seen.add(rule.id)


def _rule_violations(rule: CORSRule, path: str) -> Iterable[Violation]:
    if len(rule.id) > MAX_ID:
        yield Violation(f"{path}.id", f"must have at most {MAX_ID} characters")
    for method in rule.allowed_methods:
        if method not in METHODS:
            yield Violation(f"{path}.allowed_methods", f"has {method!r}; must be of {', '.join(METHODS)}")
    for field in ("allowed_origins", "allowed_headers"):
        if any(value.count("*") > 1 for value in getattr(rule, field)):
            yield Violation(f"{path}.{field}", "must have at most one * in each")
    if any("*" in value for value in rule.expose_headers):
        yield Violation(f"{path}.expose_headers", "must not have a *; name each header")
    if rule.max_age_seconds < 0:
        yield Violation(f"{path}.max_age_seconds", "must not be negative")
