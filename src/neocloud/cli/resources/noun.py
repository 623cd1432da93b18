"""A noun of the command line: its service, its parent and its verbs.

Everything else (flags, columns) is read from the contract.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

from google.protobuf.descriptor import ServiceDescriptor

from neocloud.client.errors import ClientError
from neocloud.core import contract

STANDARD = ("Create", "Get", "GetByName", "List", "Update", "Delete")
NEVER_OFFERED = ("ListOperationsByParent",)

Overrides = Mapping[str, Mapping[str, Callable[..., None]]]
"""Hand-written commands by noun and name; they replace derived commands of the same name."""


class Parent(StrEnum):
    """The parent of a noun, which is the default of `--parent-id`."""

    NOTHING = "nothing"
    TENANT = "tenant"
    PROJECT = "project"
    GIVEN = "given"
    """The caller must name it."""


@dataclass(frozen=True)
class NounHooks:
    """Parts of a noun that are written by hand, beside its derived commands."""

    commands: Mapping[str, Callable[..., None]] = field(default_factory=dict[str, Callable[..., None]])
    """Hand-written commands by name; they replace derived commands of the same name."""
    defaults: Callable[..., None] | None = None
    """Fills in what a request to create leaves out."""
    contents: Callable[..., str] | None = None
    """Says what a resource to be deleted holds."""
    after_create: Callable[..., None] | None = None
    """Called with the project's connection."""


Hooks = Mapping[str, NounHooks]
"""Hand-written parts of a product's nouns, by noun."""


@dataclass(frozen=True)
class Noun:
    service: str
    about: str
    example: str = ""
    """Typical arguments of create, or else of the first verb."""
    parent: Parent = Parent.PROJECT
    parent_service: str = ""
    """Service of a parent that the caller must name, so that its name will do."""
    without: tuple[str, ...] = ()
    """Methods of the service that are no commands."""
    shortcuts: tuple[tuple[str, str], ...] = ()
    """Shorter flag names: pairs of a field's path and its other name."""
    refused: tuple[str, ...] = ()
    """Paths of fields that this cloud refuses: their flags are accepted for its answer, and not in help."""
    short_name: str = ""
    """A name shorter than the service's, where the product makes it clear."""
    also_known_as: tuple[str, str] = ("", "")
    """The path of a field that identifies a resource like its name does, and the words for it in help."""
    columns: tuple[tuple[str, str], ...] = ()
    """Columns of its list between state and id: a header, and the path of a field."""
    hooks: NounHooks = field(default_factory=NounHooks)

    @cached_property
    def verbs(self) -> tuple[str, ...]:
        """Methods of the service, the standard ones first."""
        names = [method.name for method in load_service(self.service).methods]
        offered = [name for name in names if name not in (*self.without, *NEVER_OFFERED)]
        return tuple(
            sorted(offered, key=lambda name: STANDARD.index(name) if name in STANDARD else len(STANDARD))
        )

    @property
    def name(self) -> str:
        """ "nebius.iam.v1.ServiceAccountService" is `service-account`."""
        return self.short_name or kebab(self.service.rpartition(".")[2].removesuffix("Service"))

    @property
    def words(self) -> str:
        """The name in a sentence: "service account"."""
        return self.name.replace("-", " ")

    @property
    def plural(self) -> str:
        """ "access policies"."""
        words = self.words
        if words.endswith("y") and words[-2] not in "aeiou":
            return f"{words[:-1]}ies"
        return words if words.endswith("s") and not words.endswith("ss") else f"{words}s"

    @property
    def one(self) -> str:
        """The name with its article: "an access permit"."""
        return f"{'an' if self.name[0] in 'aeio' else 'a'} {self.words}"

    def rpc(self, verb: str) -> contract.Rpc:
        return load_method(f"{self.service}/{verb}")


@dataclass(frozen=True)
class Product:
    """A command group: its help text, whole example command lines, and its nouns."""

    about: str
    examples: tuple[str, ...]
    nouns: tuple[Noun, ...]


OTHER_VERBS: Mapping[str, str] = {
    "Activate": "Activate one again.",
    "Cancel": "Cancel one; its data is kept until it is deleted.",
    "BatchGet": "Show several by id.",
    "Block": "Block one: end its sessions and refuse new ones.",
    "CreateDefault": "Create the defaults of a new project and wait until they are ready.",
    "Deactivate": "Deactivate one until it is activated again.",
    "GetByInstance": "Show the maintenance planned for one instance.",
    "GetIterationHistory": "List the iterations of one, the last one first.",
    "GetLatestByFamily": "Show the newest one of a family.",
    "GetSecret": "Print the secret of one.",
    "GetWithAttributes": "Show one with the account's name and e-mail address.",
    "ListActive": "List {those} that are planned or in progress.",
    "ListAggregated": "List {those} of all regions; a cloud has one, so the result is that of list.",
    "ListCheckpoints": "List the checkpoints of one, newest first.",
    "ListEvents": "List the events of one, oldest first.",
    "ListByAccount": "List {those} of one account.",
    "ListByDisk": "List {those} of one disk.",
    "ListByNetwork": "List {those} of one network.",
    "ListByPool": "List {those} of one pool.",
    "ListBySourcePool": "List {those} taken from one pool.",
    "ListBySubnet": "List {those} of one subnet.",
    "ListMemberOf": "List the groups that an account belongs to.",
    "ListMembers": "List the members of a group.",
    "ListMembersWithAttributes": "List the members of a group with names and e-mail addresses.",
    "ListPublic": "List {those} that are provided with the cloud.",
    "OverrideGate": "Serve one although it failed the gate of its fine-tuning job.",
    "Promote": "Let the candidate of one answer all requests.",
    "RollBack": "Let the candidate of one answer no requests.",
    "Purge": "Remove a deleted one permanently, with all that it holds.",
    "Undelete": "Bring a deleted one back, until it is purged.",
    "Estimate": "Show the settings and the duration that one would have; create nothing.",
    "ReadLog": "Print the last lines of the log.",
    "ReadTokenizer": "Show the files that turn text into tokens.",
    "ReadSerialLog": "Print the output of the serial console.",
    "Pause": "Pause one after its next checkpoint.",
    "Resume": "Continue one that is paused, stopped or failed from where it was.",
    "Restart": "Restart one, whatever its state.",
    "Revoke": "Revoke all sessions of an account.",
    "SetClientSecret": "Store the client secret that the provider issued.",
    "Start": "Start one and wait until it runs.",
    "Stop": "Stop one gracefully.",
    "Unblock": "Unblock one.",
    "Wake": "Wake a sleeping one, as a request to it would.",
}
"""Help texts of the verbs that not every noun has; `{those}` is the plural of the noun."""


def load_method(path: str) -> contract.Rpc:
    try:
        return contract.method(path)
    except contract.ContractUnavailable as error:
        raise ClientError("FAILED_PRECONDITION", str(error)) from error


def load_service(name: str) -> ServiceDescriptor:
    """Return the descriptor of a service."""
    try:
        return contract.pool().FindServiceByName(name)
    except contract.ContractUnavailable as error:
        raise ClientError("FAILED_PRECONDITION", str(error)) from error


def kebab(camel: str) -> str:
    """ "GetByName" is `get-by-name`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", camel).lower()
