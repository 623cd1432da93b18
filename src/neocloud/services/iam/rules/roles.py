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
    """A named list of patterns of permissions."""

    about: str
    permissions: tuple[str, ...]


def _all(*services: str) -> tuple[str, ...]:
    return tuple(f"{service}.*" for service in services)


def _read(*services: str) -> tuple[str, ...]:
    return tuple(f"{service}.*.{verb}" for service in services for verb in ("get", "list"))


_NO_OVERRIDE = "!inference.gates.override"
"""Roles that train and deploy do not decide that a failed gate does not count."""

ROLES: Mapping[str, Role] = {
    "admin": Role("Everything, including access rights.", ("*",)),
    "editor": Role(
        "Everything except access rights, quotas, the audit log, emulator faults, removal by force and the"
        " override of gates.",
        (
            "*",
            *(f"!{pattern}" for pattern in _all("iam", "quotas", "audit", "emulator", "operator")),
            *_read("iam", "quotas"),
            _NO_OVERRIDE,
        ),
    ),
    "viewer": Role(
        "Read access to everything except the audit log; no secrets.",
        ("*.get", "*.list", "registry.images.pull", "!audit.*"),
    ),
    "auditor": Role(
        "Read access to everything, including the audit log; no secrets.",
        ("*.get", "*.list", "registry.images.pull", "audit.*"),
    ),
    "iam.admin": Role(
        "Accounts, keys, groups and permits. On a tenant it can grant any role, also to itself.",
        _all("iam"),
    ),
    "iam.viewer": Role("Read access to accounts, groups and permits.", _read("iam")),
    "iam.serviceAccounts.user": Role(
        "Acting as, or letting a machine act as, a service account with no more rights than the caller.",
        ("iam.serviceAccounts.get", "iam.serviceAccounts.list", "iam.serviceAccounts.impersonate"),
    ),
    "iam.keys.admin": Role(
        "Keys of service accounts with no more rights than the caller, who can then act as them.",
        ("iam.authPublicKeys.*", "iam.accessKeys.*", "iam.staticKeys.*", *_read("iam")),
    ),
    "compute.editor": Role(
        "Machines, disks, images and shared file systems; read access to networks.",
        (*_all("compute"), *_read("vpc", "quotas")),
    ),
    "compute.viewer": Role(
        "Read access to machines, disks, images and shared file systems.", _read("compute")
    ),
    "compute.instances.operator": Role(
        "Starting, stopping and restarting machines that others manage.",
        (*(f"compute.instances.{verb}" for verb in ("start", "stop", "restart")), *_read("compute")),
    ),
    "compute.images.user": Role(
        "Creating disks from the images of a project; to be granted together with a role elsewhere.",
        ("compute.images.get", "compute.images.list"),
    ),
    "vpc.editor": Role("Networks, subnets, addresses, routes and security groups.", (*_all("vpc"),)),
    "vpc.viewer": Role("Read access to networks.", _read("vpc")),
    "vpc.securityGroups.editor": Role(
        "Security groups and their rules; read access to networks.",
        ("vpc.securityGroups.*", "vpc.securityRules.*", *_read("vpc")),
    ),
    "slurm.editor": Role(
        "Clusters and their jobs; read access to the resources that they use.",
        (*_all("slurm"), *_read("compute", "vpc", "quotas")),
    ),
    "slurm.viewer": Role("Read access to clusters and jobs.", _read("slurm")),
    "slurm.jobs.submitter": Role(
        "Running jobs on clusters that others manage.",
        ("slurm.jobs.*", "slurm.clusters.get", "slurm.clusters.list"),
    ),
    "ai.editor": Role(
        "Endpoints and jobs of container images; read access to the resources that they use.",
        (*_all("ai"), *_read("compute", "vpc", "quotas")),
    ),
    "ai.viewer": Role("Read access to endpoints and jobs of container images.", _read("ai")),
    "tuning.editor": Role(
        "Fine-tuning jobs, and the files and models that they read and create.",
        (
            *_all("tuning"),
            *("inference.models.*", "inference.files.*"),
            *_read("inference", "compute", "slurm", "quotas"),
        ),
    ),
    "tuning.viewer": Role("Read access to fine-tuning jobs.", _read("tuning")),
    "inference.editor": Role(
        "Models, deployments, budgets, files, batches and vector stores; read access to the resources"
        " that they use.",
        (*_all("inference"), *_read("compute", "slurm", "quotas"), _NO_OVERRIDE),
    ),
    "inference.gates.overrider": Role(
        "Serving models that failed the gate of their fine-tuning job; the audit log keeps the reason.",
        ("inference.gates.override", "inference.models.get", "inference.models.list"),
    ),
    "inference.viewer": Role("Read access to models, deployments and budgets.", _read("inference")),
    "inference.user": Role(
        "Calling models that others deploy, with files, batches and vector stores of its own.",
        (
            *("inference.deployments.invoke", "inference.deployments.get", "inference.deployments.list"),
            *("inference.models.get", "inference.models.list"),
            *("inference.files.*", "inference.batches.*", "inference.vectorStores.*"),
            "inference.responses.*",
        ),
    ),
    "storage.editor": Role("Buckets and their objects.", _all("storage")),
    "storage.viewer": Role("Read access to buckets and their objects.", _read("storage")),
    "storage.objects.editor": Role(
        "Putting and deleting objects in buckets that others manage.",
        ("storage.objects.*", "storage.buckets.get", "storage.buckets.list"),
    ),
    "container-registry.images.puller": Role(
        "Pulling container images, as the service account of a node does.",
        ("registry.images.pull", *_read("registry")),
    ),
    "container-registry.images.pusher": Role(
        "Pulling and pushing container images; not deleting them.",
        ("registry.images.pull", "registry.images.push", *_read("registry")),
    ),
    "export.editor": Role(
        "Rules that export logs and bills; reading these and writing to a bucket need other roles.",
        _all("export"),
    ),
    "export.viewer": Role("Read access to export rules.", _read("export")),
    "billing.viewer": Role("Usage, prices and costs.", _read("billing")),
    "billing.admin": Role("Usage, prices, costs and their settings.", _all("billing")),
    "quotas.admin": Role("Quotas of tenants and projects.", _all("quotas")),
    "quotas.viewer": Role("Read access to quotas and their usage.", _read("quotas")),
    "audit.viewer": Role("Read access to the audit log.", _read("audit")),
}

_OTHER = "(any other)"
"""Represents every word that no role names: patterns treat all of those alike."""


@lru_cache(maxsize=4096)
def allows(role: str, permission: str) -> bool:
    """The last pattern that matches decides; an unknown role holds nothing."""
    return _allows(role, permission)


@cache
def smallest_role(permission: str) -> str:
    """Return the role that gives the least beside the permission: the fewest rights to change something,
    then the fewest rights."""
    holding = [name for name in ROLES if allows(name, permission)]
    return min(holding, key=_size, default="admin")


def _size(role: str) -> tuple[int, int, str]:
    held = permissions_of(role)
    return len([each for each in held if not each.endswith((".get", ".list"))]), len(held), role


def covers(roles: Iterable[str], wanted: str) -> bool:
    """Return whether these roles together hold every permission that the wanted role holds."""
    held = frozenset[str]().union(*(permissions_of(role) for role in roles))
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
