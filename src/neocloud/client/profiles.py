"""Profiles: the cloud, account and project that commands use.

They are stored in one YAML file, `$XDG_CONFIG_HOME/neocloud/config.yaml`, with names and paths and no secret.
A profile of a cloud on this machine also names its state folder, from which the present port is read: ports
may change when the cloud is restarted.

Device tokens lie beside that file, in one that only its owner can read. A device token identifies this client
to a cloud where a user has signed in with a password. It grants no access; sent with the next password, it
keeps wrong guesses of other people from locking the owner out. When the file is damaged, the tokens are lost.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path

import platformdirs
import yaml

from neocloud.client.errors import ClientError
from neocloud.core.json_values import as_object, is_mapping
from neocloud.core.osfiles import make_private_parents, write_file


@dataclass(frozen=True)
class Profile:
    name: str
    endpoint: str
    """host:port of the gRPC API."""
    credentials_file: str
    http_endpoint: str = ""
    tenant_id: str = ""
    project_id: str = ""
    home: str = ""
    """State folder, if the cloud runs on this machine."""
    session_file: str = ""
    """Session of a person who signed in; then there is no credentials file."""
    ca_file: str = ""
    """File of certificates to trust, if the endpoint uses TLS."""
    gateway_endpoint: str = ""
    """URL of the OpenAI-compatible API of a cloud on another machine, without the version."""
    announcement: str = ""
    """File in which a cloud of another account of this machine announces its present addresses."""


@dataclass(frozen=True)
class Profiles:
    """Content of the configuration file. Changes return a new value; `write_profiles` saves it."""

    current: str = ""
    items: Mapping[str, Profile] = field(default_factory=dict[str, Profile])

    def get(self, name: str = "") -> Profile:
        """Return the named profile, or the current one. Raises ClientError if there is none."""
        selected = name or self.current
        if selected in self.items:
            return self.items[selected]
        if not self.items:
            raise ClientError(
                "NOT_FOUND",
                "There is no profile yet",
                "Start a cloud on this machine with `neo up`, or run `neo login`",
            )
        known = ", ".join(sorted(self.items))
        if not selected:
            raise ClientError(
                "NOT_FOUND",
                "No profile is selected",
                f"Select one with `neo config use NAME`. There are: {known}",
            )
        raise ClientError("NOT_FOUND", f"There is no profile named {selected!r}", f"There are: {known}")

    def of_home(self, home: Path) -> Profile | None:
        return next((profile for profile in self.items.values() if profile.home == str(home)), None)

    def with_profile(self, profile: Profile) -> "Profiles":
        """Add or replace a profile and make it the current one."""
        return Profiles(profile.name, {**self.items, profile.name: profile})

    def without(self, name: str) -> "Profiles":
        rest = {key: profile for key, profile in self.items.items() if key != name}
        current = self.current if self.current in rest else next(iter(rest), "")
        return Profiles(current, rest)

    def signed_out(self, name: str) -> "Profiles":
        """Remove a profile; if it was the current one, no other takes its place."""
        return replace(self.without(name), current="" if self.current == name else self.current)

    def using(self, name: str) -> "Profiles":
        return replace(self, current=self.get(name).name)


def config_file() -> Path:
    return platformdirs.user_config_path("neocloud") / "config.yaml"


def session_file(name: str) -> Path:
    """Return the file of a profile's session, which unlike a token cannot be fetched again."""
    return config_file().parent / "sessions" / f"{name}.json"


def token_folder() -> Path:
    return platformdirs.user_cache_path("neocloud") / "tokens"


def read_profiles(path: Path) -> Profiles:
    try:
        document = yaml.safe_load(path.read_text())
    except FileNotFoundError:
        return Profiles()
    except OSError as error:
        raise ClientError(
            "PERMISSION_DENIED", f"{path} cannot be read: {error.strerror}", "Check who owns it"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise _malformed(path, "it is not YAML") from error
    if document is None:
        return Profiles()
    content = as_object(document)
    found = content.get("profiles")
    if not is_mapping(found):
        raise _malformed(path, "it has no `profiles`")
    items = {str(name): _profile(str(name), entry, path) for name, entry in found.items()}
    return Profiles(str(content.get("current", "")), items)


def write_profiles(profiles: Profiles, path: Path) -> None:
    """Replace the file atomically; without profiles, delete it."""
    if not profiles.items:
        path.unlink(missing_ok=True)
        return
    entries = {}
    for name, profile in profiles.items.items():
        entries[name] = {key: value for key, value in asdict(profile).items() if value and key != "name"}
    make_private_parents(path)
    write_file(path, yaml.safe_dump({"current": profiles.current, "profiles": entries}, sort_keys=False))


def _profile(name: str, entry: object, path: Path) -> Profile:
    known = {item.name for item in fields(Profile)} - {"name"}
    given = as_object(entry)
    if "endpoint" not in given or not {"credentials_file", "session_file"} & set(given):
        raise _malformed(path, f"profile {name!r} lacks endpoint or credentials_file")
    values = {key: str(value) for key, value in given.items() if key in known}
    return Profile(name, **{"credentials_file": "", **values})


def _malformed(path: Path, why: str) -> ClientError:
    return ClientError(
        "INVALID_ARGUMENT",
        f"{path} cannot be used: {why}",
        "Correct it, or move it away and run `neo up` or `neo login`",
    )


def device_token(endpoint: str, email: str) -> str:
    """Return the token of the last sign-in there; "" if there was none."""
    return _read_device_tokens().get(_device_key(endpoint, email), "")


def keep_device_token(endpoint: str, email: str, token: str) -> None:
    """Save a token. A folder that cannot be written is not an error, because sign-ins work without it."""
    known = _read_device_tokens() | {_device_key(endpoint, email): token}
    path = _device_file()
    with suppress(OSError):
        make_private_parents(path)
        write_file(path, json.dumps(known))


def _read_device_tokens() -> dict[str, str]:
    with suppress(OSError, ValueError):
        known = as_object(json.loads(_device_file().read_text()))
        return {key: value for key, value in known.items() if isinstance(value, str)}
    return {}


def _device_key(endpoint: str, email: str) -> str:
    return f"{endpoint} {email.strip().casefold()}"


def _device_file() -> Path:
    return config_file().parent / "devices.json"


def exists_in_home(file: Path) -> bool:
    """Return whether there is this file in a state folder.

    Raises ClientError if the folder is closed to this user, as that of a cloud that root started is.
    """
    try:
        file.stat()
    except PermissionError as error:
        raise ClientError(
            "PERMISSION_DENIED",
            f"{file} cannot be read by this user",
            "Run the command as root, or name another state folder with --home",
        ) from error
    except OSError:
        return False
    return True
