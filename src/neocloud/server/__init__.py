"""The API server: gRPC and JSON on the contract, for the services that it is given."""

from neocloud.server.api_server import Addresses, ApiServer, Public, Tls
from neocloud.server.certificate_state import UNUSABLE_AT_START, CertificateState, certificate_state
from neocloud.server.certificates import (
    CertificateFolder,
    ServerCertificate,
    ensure_certificate,
    names_of,
    read_certificate,
    server_names,
)
from neocloud.server.listening import AddressMissing, ServerError, expanded, listen_on
from neocloud.server.pipeline import Middleware, no_middleware
from neocloud.server.request import DescriptorError, Request, Serve

__all__ = [
    "AddressMissing",
    "UNUSABLE_AT_START",
    "Addresses",
    "ApiServer",
    "CertificateFolder",
    "CertificateState",
    "Middleware",
    "Public",
    "Request",
    "Serve",
    "ServerCertificate",
    "ServerError",
    "DescriptorError",
    "Tls",
    "certificate_state",
    "ensure_certificate",
    "expanded",
    "listen_on",
    "names_of",
    "no_middleware",
    "read_certificate",
    "server_names",
]
