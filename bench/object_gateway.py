"""Run the object gateway for benches, as `python -m neocloud.object_gateway` does, with a control plane in
memory.

It imports nothing that the gateway does not, so that its memory is that of the gateway. It prints its port
and the name of a registry, and ends with SIGTERM.
"""

import tempfile
from pathlib import Path

import uvloop

from neocloud.core.clock import SystemClock
from neocloud.data_plane.http.protocol import ClientProtocol
from neocloud.data_plane.process import listen, serve_until_signalled
from neocloud.object_gateway.composition import running_objects
from neocloud.object_gateway.s3.protocol import s3_connections
from neocloud.object_gateway.settings import ObjectsSettings
from neocloud.testing.object_control_plane import Account, FakeControlPlane

OWNER = Account("NCAKOWNER0000000", "the-secret-of-the-owner")


async def serve(folder: Path) -> None:
    settings = ObjectsSettings(home=folder, api="", port=0, requests_per_second=0)
    control_plane = FakeControlPlane()
    control_plane.add(OWNER)
    listener = listen(settings.host, 0, settings.write_seconds)
    host, port = listener.getsockname()[:2]
    async with running_objects(
        folder / "objects", bytes(range(32)), control_plane, SystemClock(), settings.s3, f"{host}:{port}"
    ) as app:
        registry = await control_plane.make_registry()
        print(port, registry.id.partition("-")[2], flush=True)
        connections = s3_connections(settings)
        await serve_until_signalled(app, ClientProtocol, settings, connections, listener, [])


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        uvloop.run(serve(Path(folder)))


if __name__ == "__main__":
    main()
