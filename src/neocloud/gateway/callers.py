"""Who calls, and what they may do where. Decided by the control plane; nothing here talks to it."""

from collections.abc import Mapping
from dataclasses import dataclass

from neocloud.gateway.errors import bad_request, forbidden

INVOKE = "inference.deployments.invoke"


@dataclass(frozen=True)
class Caller:
    """A subject, and its permissions by project."""

    subject_id: str
    subject_name: str
    tenant_id: str
    home_project_id: str
    """Where its requests belong unless they name another project; "" for people."""
    grants: Mapping[str, frozenset[str]]
    proof: str = ""
    """What its token stands on: the control plane admits it again by this, e.g. while a batch runs."""

    def may(self, permission: str, project_id: str) -> bool:
        return permission in self.grants.get(project_id, ())

    def project(self, asked: str, permission: str) -> str:
        """The project that a request belongs to; `asked` is its OpenAI-Project header, or "".

        Raises OpenAiError: 403 where the caller lacks the permission, 400 where the project is open.
        """
        possible = [project for project in self.grants if self.may(permission, project)]
        chosen = asked or self.home_project_id or (possible[0] if len(possible) == 1 else "")
        if not chosen and possible:
            raise bad_request(
                f"You have access to several projects ({', '.join(sorted(possible))}). Choose one with the"
                " OpenAI-Project header, or with `project=` of the OpenAI client.",
                param="OpenAI-Project",
            )
        if not chosen or chosen not in possible:
            raise forbidden(
                f"You do not have the permission {permission} in"
                f" {f'the project {chosen}' if chosen else 'any project'}."
            )
        return chosen
