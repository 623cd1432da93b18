"""The table of roles, the permissions of a role, and whether roles together hold all that another one holds.

A permission is "<service>.<nouns>.<verb>". A role is a list of patterns read from left to right; the last one
that matches decides, and "!" denies. A permission that no pattern matches is denied. `make docs` writes
`docs/reference/roles.md` from the table. Rights come only through groups: an access permit gives a group a
role on a tenant, a project or one resource, and on everything inside it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from itertools import product


@dataclass(frozen=True)
class Role:
    about: str
    permissions: tuple[str, ...]


def _all(*services: str) -> tuple[str, ...]:
    return tuple(f"{service}.*" for service in services)


def _read(*services: str) -> tuple[str, ...]:
    return tuple(f"{service}.*.{verb}" for service in services for verb in ("get", "list"))


ROLES: Mapping[str, Role] = {
    "admin": Role("Everything, including who may do what.", ("*",)),
    "editor": Role(
        "Everything but who may do what, how much, what was done by whom, and faults on demand.",
        (
            "*",
            *(f"!{pattern}" for pattern in _all("iam", "quotas", "audit", "emulator")),
            *_read("iam", "quotas"),
        ),
    ),
    "viewer": Role("Looking at all but the audit log; never secrets.", ("*.get", "*.list", "!audit.*")),
    "auditor": Role(
        "Looking at everything, also at what was done by whom; never secrets.", ("*.get", "*.list", "audit.*")
    ),
    "iam.admin": Role(
        "Who may do what: accounts, keys, groups, permits. On a tenant it can give any role, also to itself.",
        _all("iam"),
    ),
    "iam.viewer": Role("Looking at accounts, groups and permits.", _read("iam")),
    "iam.serviceAccounts.user": Role(
        "Acting as a service account that holds no more than oneself, and letting a machine act as it.",
        ("iam.serviceAccounts.get", "iam.serviceAccounts.list", "iam.serviceAccounts.impersonate"),
    ),
    "iam.keys.admin": Role(
        "Keys of service accounts that hold no more than oneself: whoever has it can act as those accounts.",
        ("iam.authPublicKeys.*", "iam.accessKeys.*", "iam.staticKeys.*", *_read("iam")),
    ),
    "compute.editor": Role(
        "Machines, disks, images and shared file systems; networks to put them into can be seen.",
        (*_all("compute"), *_read("vpc", "quotas")),
    ),
    "compute.viewer": Role("Looking at machines, disks, images and shared file systems.", _read("compute")),
    "compute.instances.operator": Role(
        "Starting, stopping and restarting machines that others manage.",
        (*(f"compute.instances.{verb}" for verb in ("start", "stop", "restart")), *_read("compute")),
    ),
    "compute.images.user": Role(
        "Making disks from the images of a project: to be given together with a role elsewhere.",
        ("compute.images.get", "compute.images.list"),
    ),
    "vpc.editor": Role("Networks, subnets, addresses, routes and security groups.", (*_all("vpc"),)),
    "vpc.viewer": Role("Looking at networks.", _read("vpc")),
    "vpc.securityGroups.editor": Role(
        "Which traffic is let through; the networks themselves stay as they are.",
        ("vpc.securityGroups.*", "vpc.securityRules.*", *_read("vpc")),
    ),
    "slurm.editor": Role(
        "Clusters and their jobs; what they are built from can be seen.",
        (*_all("slurm"), *_read("compute", "vpc", "quotas")),
    ),
    "slurm.viewer": Role("Looking at clusters and jobs.", _read("slurm")),
    "slurm.jobs.submitter": Role(
        "Running jobs on clusters that others manage.",
        ("slurm.jobs.*", "slurm.clusters.get", "slurm.clusters.list"),
    ),
    "ai.editor": Role(
        "Endpoints and jobs of container images; what they run on can be seen.",
        (*_all("ai"), *_read("compute", "vpc", "quotas")),
    ),
    "ai.viewer": Role("Looking at endpoints and jobs of container images.", _read("ai")),
    "tuning.editor": Role(
        "Fine-tuning jobs, and the files and models that they begin and end with.",
        (
            *_all("tuning"),
            *("inference.models.*", "inference.files.*"),
            *_read("inference", "compute", "slurm", "quotas"),
        ),
    ),
    "tuning.viewer": Role("Looking at fine-tuning jobs.", _read("tuning")),
    "inference.editor": Role(
        "Models, deployments, budgets, files and batches; what they run on can be seen.",
        (*_all("inference"), *_read("compute", "slurm", "quotas")),
    ),
    "inference.viewer": Role("Looking at models, deployments and budgets.", _read("inference")),
    "inference.user": Role(
        "Calling models that others deploy, with files and batches of its own.",
        (
            *("inference.deployments.invoke", "inference.deployments.get", "inference.deployments.list"),
            *("inference.models.get", "inference.models.list"),
            *("inference.files.*", "inference.batches.*"),
        ),
    ),
    "storage.editor": Role("Buckets and what is in them.", _all("storage")),
    "storage.viewer": Role("Looking at buckets and what is in them.", _read("storage")),
    "storage.objects.editor": Role(
        "Putting and deleting objects in buckets that others manage.",
        ("storage.objects.*", "storage.buckets.get", "storage.buckets.list"),
    ),
    "container-registry.images.puller": Role(
        "Pulling container images: what a node's service account needs.",
        ("registry.images.pull", "registry.registries.get"),
    ),
    "container-registry.images.pusher": Role(
        "Pulling and pushing container images.",
        ("registry.images.pull", "registry.images.push", "registry.registries.get"),
    ),
    "billing.viewer": Role("Usage, prices and costs.", _read("billing")),
    "billing.admin": Role("Everything about money.", _all("billing")),
    "quotas.admin": Role("How much a project may use.", _all("quotas")),
    "quotas.viewer": Role("Looking at how much may be used, and how much is.", _read("quotas")),
    "audit.viewer": Role("What was done by whom.", _read("audit")),
}

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
