"""The cloud that a command talks to: the selected profile, or a state folder."""

import os
from collections.abc import Iterator
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlencode

import typer

from neocloud.cli.choice import Choice
from neocloud.client.connection import Client, connect
from neocloud.client.credentials import read_credentials
from neocloud.client.errors import ClientError
from neocloud.client.profiles import Profile, Profiles, config_file, exists_in_home, read_profiles

if TYPE_CHECKING:
    from neocloud.client.gateway import Gateway

DEFAULT_HOME = Path("/var/lib/neocloud")
PAGE_SIZE = 1000
"""Entries that are asked for at a time."""

HomeOption = Annotated[Path | None, typer.Option(envvar="NEOCLOUD_HOME", help="State folder of the cloud.")]


def profile_of(context: typer.Context) -> Profile:
    """Return the profile: `--profile` first, then `NEOCLOUD_HOME`, then the current one."""
    choice: Choice = context.find_object(Choice) or Choice()
    profiles = read_profiles(config_file())
    home = os.environ.get("NEOCLOUD_HOME", "")
    if choice.profile or not home:
        return profiles.get(choice.profile)
    return profiles.of_home(Path(home).absolute()) or profile_of_home(Path(home).absolute(), "home")


def profile_of_home(home: Path, name: str) -> Profile:
    """Return a profile made from the files that the server wrote into its state folder."""
    credentials_file = home / "credentials.json"
    if not exists_in_home(credentials_file):
        raise ClientError(
            "UNAVAILABLE",
            f"There is no cloud in {home}",
            f"Start one with `neo up --home {quote(str(home))}`",
        )
    credentials = read_credentials(credentials_file)
    return Profile(
        name=name,
        endpoint=credentials.endpoint,
        credentials_file=str(credentials_file),
        tenant_id=credentials.tenant_id,
        project_id=credentials.project_id,
        home=str(home),
    )


def profile_name_for(profiles: Profiles, home: Path) -> str:
    """Return the profile name for `neo up`: the existing one, else `default`, else the folder's name."""
    known = profiles.of_home(home)
    if known:
        return known.name
    candidates = ["default", home.name, *(f"{home.name}-{number}" for number in range(2, 1000))]
    return next(name for name in candidates if name not in profiles.items)


def client_of(context: typer.Context) -> Client:
    return connect(profile_of(context))


def project_of(profile: Profile, given: str = "") -> str:
    """Return the project to work in. Raises ClientError when none is known."""
    if given or profile.project_id:
        return given or profile.project_id
    raise ClientError(
        "INVALID_ARGUMENT",
        f"Profile {profile.name!r} names no project",
        "Give --project, or choose one with `neo config set-project ID`; `neo iam project list` lists them",
    )


def home_of(context: typer.Context, given: Path | None = None) -> Path:
    """Return the state folder for a command about this machine."""
    named = given or (Path(os.environ["NEOCLOUD_HOME"]) if os.environ.get("NEOCLOUD_HOME") else None)
    if named is not None:
        return named.absolute()
    choice: Choice = context.find_object(Choice) or Choice()
    profiles = read_profiles(config_file())
    if choice.profile:
        profile = profiles.get(choice.profile)
        if not profile.home:
            raise ClientError(
                "INVALID_ARGUMENT",
                f"The cloud of profile {profile.name!r} runs on another machine ({profile.endpoint})",
                "Run this command there",
            )
        return Path(profile.home)
    current = profiles.items.get(profiles.current)
    return Path(current.home) if current and current.home else DEFAULT_HOME


def current_is_remote(context: typer.Context) -> bool:
    """Return whether the cloud of the profile to use has no state folder on this machine."""
    choice: Choice = context.find_object(Choice) or Choice()
    profiles = read_profiles(config_file())
    profile = profiles.items.get(choice.profile or profiles.current)
    return profile is not None and not profile.home


def gateway_of(context: typer.Context, url: str = "", project: str = "") -> "Gateway":
    """Open the profile's gateway, or another OpenAI-compatible API with its key from the environment."""
    from neocloud.client.gateway import open_api, open_gateway  # noqa: PLC0415  httpx, for few commands

    return open_api(url) if url else open_gateway(profile_of(context), project)


def listed(gateway: Any, path: str, **query: str) -> Iterator[Any]:
    """Yield all entries of a list of the gateway, such as "files", page by page."""
    while True:
        given = urlencode({**query, "limit": str(PAGE_SIZE)})
        page = gateway.get(f"{path}?{given}")
        yield from page["data"]
        if not page.get("has_more") or not page["data"]:
            return
        query["after"] = page["data"][-1]["id"]
