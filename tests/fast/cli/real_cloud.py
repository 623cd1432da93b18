"""The real control plane on a fake engine, in a thread of its own, and a profile for it."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from neocloud.client.profiles import Profile, Profiles, config_file, write_profiles
from tests.fast.services.quotas.conftest import Cloud, running_cloud


class _Running:
    """The cloud in a thread of its own: the command line blocks while it waits."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._ready, self._stop = threading.Event(), asyncio.Event()
        self.cloud: Cloud
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_until_complete, args=(self._run(),))

    async def _run(self) -> None:
        async with running_cloud(self._home) as self.cloud:
            self._ready.set()
            await self._stop.wait()

    def __enter__(self) -> Cloud:
        self._thread.start()
        assert self._ready.wait(30)
        return self.cloud

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)
        self.loop.close()


@contextmanager
def cloud_with_profile(home: Path) -> Iterator[Cloud]:
    """Run the cloud; the command line's profile is of its first service account."""
    home.mkdir()
    with _Running(home) as cloud:
        endpoint = cloud.running.server.addresses.grpc
        credentials = str(home / "sdk.json")
        Path(credentials).write_text(json.dumps(cloud.running.first.credentials))
        profile = Profile(
            "real", endpoint, credentials, tenant_id=cloud.tenant_id, project_id=cloud.project_id
        )
        write_profiles(Profiles().with_profile(profile), config_file())
        yield cloud
