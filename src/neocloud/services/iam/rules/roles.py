"""Whether a role holds a permission, and whether roles together hold all that another one holds.

Rights come only through groups: an access permit gives a group a role on a tenant, a project or one resource,
and on everything inside it.
"""

from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from itertools import product

from neocloud.services.iam.rules.role_table import ROLES

__all__ = ["ROLES", "allows", "covers", "permissions_of"]

_OTHER = "(any other)"
"""Stands for every word that no role names: patterns treat all of those alike."""


@lru_cache(maxsize=4096)
def allows(role: str, permission: str) -> bool:
    """The last pattern that matches decides; an unknown role holds nothing."""
    return _allows(role, permission)


def covers(roles: Iterable[str], wanted: str) -> bool:
    """Whether these roles together hold every permission that the wanted role holds."""
    held = frozenset().union(*(permissions_of(role) for role in roles))
    return permissions_of(wanted) <= held


@cache
def permissions_of(role: str) -> frozenset[str]:
    """The permissions that a role holds, out of all that any two roles could differ in.

    A pattern consists of whole words and `*`. So permissions whose words no role names are all alike, and one
    of them stands for the rest: the answer is exact also for permissions that do not exist yet.
    """
    return frozenset(each for each in _distinct_permissions() if _allows(role, each))


@cache
def _distinct_permissions() -> tuple[str, ...]:
    services, nouns, verbs = {_OTHER}, {_OTHER}, {_OTHER}
    for role in ROLES.values():
        for pattern in role.permissions:
            first, *middle, last = pattern.removeprefix("!").split(".") if "." in pattern else ("*", "*")
            services.add(first)
            nouns.update(middle)
            verbs.add(last)
    return tuple(".".join(words) for words in product(services - {"*"}, nouns - {"*"}, verbs - {"*"}))


def _allows(role: str, permission: str) -> bool:
    is_allowed = False
    for pattern in ROLES[role].permissions if role in ROLES else ():
        if fnmatchcase(permission, pattern.removeprefix("!")):
            is_allowed = not pattern.startswith("!")
    return is_allowed
