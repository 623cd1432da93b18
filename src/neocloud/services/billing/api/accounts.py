"""The report of a bill by account: who created what is charged, or called it."""

import asyncio
from collections.abc import Mapping, Sequence

from neocloud.core.service import Dependencies
from neocloud.core.store.protocol import Page, Transaction
from neocloud.core.usage import CallerSource, CreditSource, UsageRecord
from neocloud.services.billing.api.usage import Window, projects_of, usage_and_credits
from neocloud.services.billing.rules.accounts import (
    AccountLine,
    LineKey,
    by_account,
    callers_by_line,
    creators,
)
from neocloud.services.billing.rules.cost import Line, rate
from neocloud.services.billing.rules.price_list import Unit, price_list

_CHANGES = frozenset({"Update", "Delete"})
"""Verbs of operations that a resource may have which no account created."""

_PAGE = 100
"""Operations that are in memory at a time: their requests may be large."""


async def rated_by_account(
    dependencies: Dependencies, parent_id: str, window: Window
) -> Sequence[AccountLine]:
    """Return the lines of a bill with whose cost they are. Raises ApiError."""
    provided, store = dependencies.provided, dependencies.store
    records, credits = await usage_and_credits(
        dependencies, parent_id, window, credits=provided.find(CreditSource)
    )
    lines = rate(records, price_list(provided), credits)
    owners = {
        record.resource_id: record.owner_id
        for record in records
        if isinstance(record, UsageRecord) and record.owner_id
    }
    known = await store.read_long(
        lambda tx: stored_creators(tx, {line.resource_id for line in lines}, owners)
    )
    source = provided.find(CallerSource)
    callers: Mapping[LineKey, Mapping[str, int]] = {}
    if source is not None:
        projects = await store.read(lambda tx: projects_of(tx, parent_id))
        used = await asyncio.to_thread(lambda: list(source.by_caller(projects, window.start, window.end)))
        callers = callers_by_line(used)
    return by_account(lines, lambda resource_id: known[resource_id], callers, _is_called)


def _is_called(line: Line) -> bool:
    return line.unit == Unit.MILLION_TOKENS.label


def stored_creators(tx: Transaction, resource_ids: set[str], owners: Mapping[str, str]) -> Mapping[str, str]:
    """Return the account behind each resource; `owners` are those that the history names."""

    def created_by(resource_id: str) -> str:
        """Return the account of the operation that made the resource; the store keeps all operations."""
        first, after = None, ""
        while True:
            operations, after = tx.list_operations(resource_id=resource_id, page=Page(_PAGE, after))
            first = operations[-1] if operations else first
            if not after:
                break
        if first is None or first.resource_version > 1 or first.method.rpartition("/")[2] in _CHANGES:
            return ""
        return first.created_by

    def owner_of(resource_id: str) -> str:
        row = tx.get(resource_id)
        return row.owner_id if row is not None else owners.get(resource_id, "")

    return creators(resource_ids, created_by, owner_of)
