"""Run the object gateway: `python -m neocloud.object_gateway`. The control plane starts it; it outlives
restarts of the control plane."""

import argparse
import socket
from pathlib import Path

from neocloud.core.clock import SystemClock
from neocloud.data_plane.certificate_files import CertificateFiles
from neocloud.data_plane.http.protocol import ClientProtocol
from neocloud.data_plane.process import (
    Served,
    add_options,
    listen,
    listen_over_tls,
    log_addresses,
    read_options,
    run_gateway,
    serve_until_signalled,
    web_server,
)
from neocloud.object_gateway.composition import load_or_make_store_key, running_objects
from neocloud.object_gateway.control_plane import GrpcControlPlane
from neocloud.object_gateway.gateway import Gateway
from neocloud.object_gateway.oci.upstream_registries import upstream_of
from neocloud.object_gateway.s3.protocol import s3_connections
from neocloud.object_gateway.settings import ObjectsSettings
from neocloud.object_gateway.work.scan.advisories import provided_file
from neocloud.object_gateway.work.transfers.runner import TransferNetwork
from neocloud.object_store.blobs.s3.location import s3_place
from neocloud.object_store.errors import ObjectStoreError

NUMBERS = ("requests_per_second", "stale_seconds", "down_seconds", "scrub_bytes_per_second")
"""More settings that are options of the same name."""


async def serve(settings: ObjectsSettings) -> None:
    # Bound before anything else is done, so that two gateways cannot compete for the port.
    listener = listen(settings.host, settings.port, settings.write_seconds)
    tls_listeners = listen_over_tls(settings)
    for_workloads = listen_to_workloads(settings)
    host, port = listener.getsockname()[:2]
    key = load_or_make_store_key(settings.store_key_file)
    control_plane = GrpcControlPlane(settings.api, settings.key_file)
    endpoint = f"{host}:{port}"
    try:
        async with running_objects(
            *(settings.folder, key, control_plane, SystemClock(), settings.s3, endpoint),
            tls_port=settings.tls_port if tls_listeners else 0,
            scrub_bytes_per_second=settings.scrub_bytes_per_second,
            advisory_file=provided_file(settings.home),
            place=settings.place,
            upstreams=settings.upstreams,
            metadata=settings.metadata,
            transfers=TransferNetwork(endpoint, settings.region, settings.allow_private_transfers),
        ) as app:
            log_addresses("S3 and images", settings, listener, tls_listeners)
            connections = s3_connections(settings)
            more = [workload_server(app, settings, each) for each in for_workloads]
            await serve_until_signalled(
                app, ClientProtocol, settings, connections, listener, tls_listeners, more
            )
    finally:
        await control_plane.close()


def listen_to_workloads(settings: ObjectsSettings) -> list[socket.socket]:
    """Return the socket at the address for workloads, if there is one. Raises OSError."""
    if not settings.workload_host:
        return []
    where = (settings.workload_host, settings.workload_port)
    return [listen(*where, settings.write_seconds, is_added_later=True)]


def workload_server(app: Gateway, settings: ObjectsSettings, listener: socket.socket) -> Served:
    """Return the server for workloads, which take no connections away from other clients."""
    assert settings.workload_certificate and settings.workload_key, "The parser requires both."
    certificate = CertificateFiles(settings.workload_certificate, settings.workload_key)
    connections = s3_connections(settings)
    server = web_server(app, ClientProtocol, settings, connections, tls=True, certificate=certificate)
    return Served(server, [listener], connections)


def settings_of(arguments: list[str] | None = None) -> ObjectsSettings:
    parser = argparse.ArgumentParser(
        prog="python -m neocloud.object_gateway", description="Serve S3 and container images."
    )
    add_options(parser, ObjectsSettings, NUMBERS)
    parser.add_argument("--region", default=ObjectsSettings.region)
    parser.add_argument(
        "--domain",
        dest="domains",
        action="append",
        default=[],
        help="name below which buckets are named by the host, beside localhost; may be repeated",
    )
    parser.add_argument("--allow-private-transfers", action="store_true")
    parser.add_argument(
        "--registry-mirror",
        dest="upstreams",
        action="append",
        default=[],
        type=upstream_of,
        metavar="NAME=URL",
        help="registry elsewhere that may be mirrored; may be repeated",
    )
    parser.add_argument("--workload-host", default="", help="address at which workloads reach it over TLS")
    parser.add_argument("--workload-port", type=int, default=0)
    for name in ("certificate", "key"):
        parser.add_argument(f"--workload-{name}", type=Path, help="PEM file")
    for name in ("blobs", "blobs-endpoint", "blobs-region", "blobs-credentials"):
        parser.add_argument(f"--{name}", default="", help="another S3 engine that has the bodies of objects")
    parser.add_argument("--metadata", type=Path, help="file with the URL of a database that has the metadata")
    values = read_options(parser, arguments)
    if values["workload_host"] and not (values["workload_certificate"] and values["workload_key"]):
        parser.error("--workload-host needs --workload-certificate and --workload-key")
    url, *where = (values.pop(f"blobs{name}") for name in ("", "_endpoint", "_region", "_credentials"))
    try:
        values["place"] = s3_place(url, where[0], where[1], Path(where[2])) if url else None
    except ValueError as error:
        parser.error(f"argument --blobs: {error}")
    domains = (*ObjectsSettings.domains, *(each.lower() for each in values.pop("domains")))
    upstreams = tuple(values.pop("upstreams"))
    return ObjectsSettings(**values, domains=domains, upstreams=upstreams)


def main() -> None:
    settings = settings_of()
    run_gateway("object gateway", settings, serve(settings), (ObjectStoreError,))


if __name__ == "__main__":
    main()
