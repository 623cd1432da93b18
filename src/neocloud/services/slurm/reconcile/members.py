"""People in the groups of a cluster: who they are, and the name of the Linux user of each.

A name is derived from an e-mail address, or from what a provider of identities calls a person, which
outsiders choose. So nothing of it but letters, digits and dashes is kept, and it never is that of another
user, of a former one, or of the system. It stays: the status of the cluster has the name of each account,
also of those that left.
"""

import itertools
import re
import unicodedata
from collections.abc import Container, Iterable, Iterator

from neocloud.services.iam.types import GroupMembers
from neocloud.services.slurm.reconcile.scope import ClusterScope
from neocloud.services.slurm.rules import RESERVED_PREFIXES, is_reserved_user
from neocloud.services.slurm.types import MAX_MEMBERS, LinuxUser

MAX_NAME_CHARS = 24
"""Leaves room for a number, in the 31 characters that a name may have."""


async def find_users(members: GroupMembers, scope: ClusterScope) -> None:
    """Set the users that the cluster should have: those of the spec, then the people in its groups."""
    spec, status = scope.cluster.spec, scope.cluster.status
    scope.wanted = [
        LinuxUser(user.name, tuple(key.strip() for key in user.ssh_public_keys)) for user in spec.users
    ]
    if not spec.group_ids:
        return
    records = (*status.former_users, *status.users)
    names = {record.account_id: record.name for record in records if record.account_id}
    made = {user.account_id for user in status.users if user.uid}
    taken = {record.name for record in records} | {user.name for user in spec.users}
    people = await members(scope.cluster.metadata.parent_id, spec.group_ids)
    scope.left_out = max(0, len(people) - MAX_MEMBERS)
    for person in people[:MAX_MEMBERS]:
        name = names.get(person.account_id) or free_name(person.name, taken)
        taken.add(name)
        # Keys open no account that somebody else made by this name.
        keys = person.ssh_public_keys if person.account_id in made else ()
        scope.wanted.append(LinuxUser(name, keys, person.account_id))


def free_name(person: str, taken: Container[str]) -> str:
    """Return a name for a new user: ann, ann-2, ann-3."""
    return next(name for name in _candidates(person) if name not in taken and not is_reserved_user(name))


def _candidates(person: str) -> Iterator[str]:
    first = linux_name(person)
    yield first
    yield from (f"{first}-{number}" for number in itertools.count(2))


def linux_name(person: str) -> str:
    """Return the part before the "@" as a name: "Ann.Lee@bank.example" is "ann-lee"."""
    local = unicodedata.normalize("NFKD", person[:256].partition("@")[0])
    words: Iterable[str] = re.findall(r"[a-z0-9]+", "".join(_plain(local)).lower())
    name = re.sub(r"^[^a-z]+", "", "-".join(words))
    if name.startswith(RESERVED_PREFIXES):  # no number after it would help
        name = f"user-{name}"
    return name[:MAX_NAME_CHARS].rstrip("-") or "user"


def _plain(text: str) -> Iterator[str]:
    """Yield the ASCII characters, without the accents that a letter was divided into, others as a gap."""
    for character in text:
        if character.isascii():
            yield character
        elif not unicodedata.combining(character):
            yield " "
