"""Where an emulated cloud keeps its state, and that it is never mixed up with a real one."""

import tempfile
from pathlib import Path

from neocloud.cli.machine.home import Home
from neocloud.client.errors import ClientError
from neocloud.client.profiles import config_file, read_profiles

NOTHING_REAL = "This is an emulator: nothing real runs in it, no machine, no container, no job."


def emulator_home(named: Path | None) -> Home:
    """The named folder, else that of the emulator in use, else a new temporary one of the user's own."""
    if named is not None:
        home = Home(named.absolute())
        if home.was_started() and not home.settings().emulator:
            raise ClientError(
                "FAILED_PRECONDITION",
                f"{home.path} holds a real cloud, and an emulator would forget what runs in it",
                "Name another folder with --home",
            )
        return home
    profiles = read_profiles(config_file())
    current = profiles.items.get(profiles.current)
    if current is not None and current.home and Home(Path(current.home)).settings().emulator:
        return Home(Path(current.home))
    return Home(Path(tempfile.mkdtemp(prefix="neocloud-emulator-")))
