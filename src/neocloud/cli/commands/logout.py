"""`neo logout`: end the session of a profile."""

from pathlib import Path

import typer

from neocloud.cli.lazy import command_group
from neocloud.cli.output import warn
from neocloud.cli.target import profile_of
from neocloud.cli.terminal import echo
from neocloud.client.connection import invoker, open_channel
from neocloud.client.errors import ClientError
from neocloud.client.profiles import config_file, read_profiles, write_profiles
from neocloud.client.sessions import forget_session, read_session, sign_out

app = command_group()


@app.command()
def logout(context: typer.Context) -> None:
    """Sign out and remove the profile.

    Example:

      neo logout
    """
    profile = profile_of(context)
    if not profile.session_file:
        raise ClientError(
            "FAILED_PRECONDITION",
            f"Profile {profile.name!r} belongs to a service account, which has no session",
            f"Remove it with `neo config remove {profile.name}`",
        )
    file = Path(profile.session_file)
    try:
        session = read_session(file)
        with open_channel(profile.endpoint, profile.ca_file) as channel:
            sign_out(invoker(channel, profile.endpoint), session)
    except ClientError as error:
        warn(f"The cloud could not be reached, so the session stays valid until it is revoked. {error}")
    forget_session(file)
    write_profiles(read_profiles(config_file()).without(profile.name), config_file())
    echo(f"Signed out. Profile {profile.name} is removed.")
