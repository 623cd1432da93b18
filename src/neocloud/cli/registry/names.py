"""Names of what lies in a registry of the cloud: REGISTRY/REPOSITORY:TAG, where REGISTRY is a registry's
name, its id, or the registry_fqdn that the API shows."""

import re
from dataclasses import dataclass

from neocloud.cli.resources.lookup import ProjectClient, id_of
from neocloud.client.errors import ClientError
from neocloud.core import digests

REGISTRIES = "nebius.registry.v1.RegistryService"
ID_PREFIX = "registry-"
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REST = re.compile(
    rf"({_PART}(?:/{_PART})*)(?::([A-Za-z0-9_][A-Za-z0-9._-]{{0,127}}))?(?:@({digests.PATTERN}))?"
)
_HUB_ID = re.compile(r"[^/:@]+(/[^/:@]+)?")


@dataclass(frozen=True)
class ArtifactName:
    fqdn: str
    """The registry_fqdn of its registry."""
    repository: str
    tag: str
    digest: str = ""
    """"": it is named by its tag."""

    @property
    def path(self) -> str:
        """The name of the repository in the protocol, with the registry before it."""
        return f"{self.fqdn.partition('/')[2]}/{self.repository}"

    def __str__(self) -> str:
        reference = f"@{self.digest}" if self.digest else f":{self.tag}"
        return f"{self.fqdn}/{self.repository}{reference}"


def is_artifact(source: str) -> bool:
    """Return whether the source of a model is an artifact: ids of the hub have one slash at most, no tag."""
    return "/" in source and not _HUB_ID.fullmatch(source)


def check_hub_id(cloud: ProjectClient, source: str) -> None:
    """Raise ClientError where an id of the hub may be meant for a repository, as with docker, which adds
    `:latest`. Neither is guessed: who makes a registry would else decide what an id of the hub is for others.
    """
    registry, slash, _ = source.partition("/")
    if not slash:
        return
    try:
        cloud.client.call(f"{REGISTRIES}/GetByName", {"parent_id": cloud.project, "name": registry})
    except ClientError:  # there is none, or none for this caller
        return
    raise ClientError(
        "INVALID_ARGUMENT",
        f"{source!r} may be an id of the hub, and {registry!r} is a registry of this project",
        f"Write {source}:latest for the registry, or add `--revision main` for the hub",
    )


def find_artifact(cloud: ProjectClient, text: str) -> ArtifactName:
    """Read a name, and find its registry. Raises ClientError."""
    first, _, rest = text.partition("/")
    is_host = "." in first or ":" in first or first == "localhost"
    registry, _, repository = rest.partition("/") if is_host else (first, "", rest)
    found = _REST.fullmatch(repository)
    if not registry or found is None:
        raise ClientError(
            "INVALID_ARGUMENT",
            f"{text!r} names nothing in a registry",
            "Write REGISTRY/REPOSITORY:TAG, in lower case; `neo registry registry list` lists the registries",
        )
    fqdn = _fqdn(cloud, f"{ID_PREFIX}{registry}" if is_host else registry)
    if is_host and fqdn != f"{first}/{registry}":
        raise ClientError(
            "INVALID_ARGUMENT",
            f"{first} is not the registry of this cloud, which is {fqdn.partition('/')[0]}",
            f"Write {fqdn}/{repository}, or the registry's name in place of its address",
        )
    return ArtifactName(fqdn, found[1], found[2] or "latest", found[3] or "")


def find_target(cloud: ProjectClient, text: str) -> ArtifactName:
    """Read the name of what is to be pushed, and find its registry. Raises ClientError."""
    found = find_artifact(cloud, text)
    if found.digest:
        raise ClientError("INVALID_ARGUMENT", f"{text!r} names a digest", "Name a tag in its place")
    return found


def _fqdn(cloud: ProjectClient, registry: str) -> str:
    found = cloud.client.call(f"{REGISTRIES}/Get", {"id": id_of(cloud, REGISTRIES, registry)})
    if not found.status.registry_fqdn:
        raise ClientError(
            "UNAVAILABLE", f"The registry {registry!r} is not ready yet", "`neo status` shows the gateway"
        )
    return found.status.registry_fqdn
