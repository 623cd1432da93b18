"""Validation rules of a registry."""

from collections.abc import Iterable, Mapping

from neocloud.core.kind import Rules, Violation
from neocloud.core.readers import ResourceReader
from neocloud.messages.nebius.registry.v1 import Registry
from neocloud.services.registry.types import ALLOWED, MAX_RULE, RULE_LABELS, SPARSE_LABEL, rule_of

MAX_DESCRIPTION = 1024


class RegistryRules(Rules[Registry]):
    def quota_demand(self, resource: Registry) -> Mapping[str, int]:
        return {"registry.registry.count": 1}

    def violations(self, new: Registry, old: Registry | None, reader: ResourceReader) -> Iterable[Violation]:
        if len(new.spec.description) > MAX_DESCRIPTION:
            yield Violation("spec.description", f"has more than {MAX_DESCRIPTION:,} characters")
        for label in RULE_LABELS:
            if rule_of(new.metadata.labels, label) is None:
                yield Violation(
                    f"metadata.labels[{label}]",
                    f"is a rule of the registry: give a number from 1 to {MAX_RULE:,}, or leave it out",
                )
        if new.metadata.labels.get(SPARSE_LABEL, ALLOWED) != ALLOWED:
            yield Violation(
                f"metadata.labels[{SPARSE_LABEL}]",
                f"is a rule of the registry: write {ALLOWED!r}, or leave it out",
            )
