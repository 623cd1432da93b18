"""What the command line must know of a noun: its service, whom it belongs to, which verbs it has.

Everything else (its verbs' flags, its columns) is read from the contract.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from neocloud.client.errors import ClientError
from neocloud.core import contract


class Parent(StrEnum):
    """What a noun belongs to, and so what `--parent-id` is when it is not given."""

    NOTHING = "nothing"
    TENANT = "tenant"
    PROJECT = "project"
    GIVEN = "given"
    """Something that the caller must name."""


@dataclass(frozen=True)
class Noun:
    service: str
    parent: Parent
    verbs: tuple[str, ...]
    about: str
    example: str = ""
    """Flags that a person would give on create, or else on the first verb."""
    shortcuts: tuple[tuple[str, str], ...] = ()
    """Shorter names of flags: the path of the field, and the other name."""
    called: str = ""
    """A shorter name than its service's, where its product says the rest."""

    @property
    def name(self) -> str:
        """ "nebius.iam.v1.ServiceAccountService" is `service-account`."""
        return self.called or kebab(self.service.rpartition(".")[2].removesuffix("Service"))

    @property
    def words(self) -> str:
        """For sentences: "service account"."""
        return self.name.replace("-", " ")

    @property
    def one(self) -> str:
        """With its article: "an access permit"."""
        return f"{'an' if self.name[0] in 'aeio' else 'a'} {self.words}"

    def rpc(self, verb: str) -> contract.Rpc:
        return load_method(f"{self.service}/{verb}")


OTHER_VERBS: Mapping[str, str] = {
    "Activate": "Let it be used again.",
    "Cancel": "End it for good; what it kept stays until it is deleted.",
    "BatchGet": "Show several at once.",
    "Block": "End its sessions and let it in no more.",
    "CreateDefault": "Make what a new project has, and wait until it is there.",
    "Deactivate": "Let it be used no more, until it is activated again.",
    "GetByInstance": "Show what is planned for one instance.",
    "GetLatestByFamily": "Show the newest one of a family.",
    "GetSecret": "Print its secret.",
    "GetWithAttributes": "Show one with the name and address of the account.",
    "ListActive": "List what is planned or under way.",
    "ListAggregated": "List those of all regions; this cloud has one, so it is the same as list.",
    "ListCheckpoints": "List its checkpoints, the newest first.",
    "ListEvents": "List what happened, the oldest first.",
    "ListByAccount": "List those of one account.",
    "ListByDisk": "List those of one disk.",
    "ListByNetwork": "List those of one network.",
    "ListByPool": "List those of one pool.",
    "ListBySourcePool": "List those taken from one pool.",
    "ListBySubnet": "List those of one subnet.",
    "ListMemberOf": "List the groups that one account is in.",
    "ListMembers": "List who is in a group.",
    "ListMembersWithAttributes": "List who is in a group, with names and addresses.",
    "ListPublic": "List those that came with the cloud.",
    "ReadLog": "Print the last lines of its log.",
    "ReadSerialLog": "Print what it wrote to its serial console.",
    "Pause": "Stop it after a checkpoint.",
    "Resume": "Let it go on from its newest checkpoint, also after a failure.",
    "Restart": "Start it anew, whatever it is doing.",
    "Revoke": "End them all.",
    "SetClientSecret": "Give it the secret that the provider has issued.",
    "Start": "Start it, and wait until it runs.",
    "Stop": "Stop it in order.",
    "Unblock": "Let it in again.",
    "Wake": "Start it if it sleeps, as a request to it would.",
}
"""What verbs do that not every noun has. "It" is the noun."""


def load_method(path: str) -> contract.Rpc:
    try:
        return contract.method(path)
    except contract.ContractUnavailable as error:
        raise ClientError("FAILED_PRECONDITION", str(error)) from error


def kebab(camel: str) -> str:
    """ "GetByName" is `get-by-name`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", camel).lower()
