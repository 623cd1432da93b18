"""The front door: gRPC and JSON on the contract, for whatever bricks it is given."""

from neocloud.server.api_server import Addresses, ApiServer, ServerError, Tls
from neocloud.server.certificates import ensure_certificate, server_names
from neocloud.server.inbound import Inbound, Serve
from neocloud.server.pipeline import Around, just_serve
from neocloud.server.shape import ShapeError

__all__ = [
    "Addresses",
    "ApiServer",
    "Around",
    "Inbound",
    "Serve",
    "ServerError",
    "ShapeError",
    "Tls",
    "ensure_certificate",
    "just_serve",
    "server_names",
]
