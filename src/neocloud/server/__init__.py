"""The front door: gRPC and JSON on the contract, for whatever bricks it is given."""

from neocloud.server.api_server import Addresses, ApiServer, ServerError
from neocloud.server.shape import ShapeError

__all__ = ["Addresses", "ApiServer", "ServerError", "ShapeError"]
