"""The endpoint at which containers and machines of this cloud reach object storage and the registry: an
address, a name and a certificate of their own, since everything else of this host is closed to them.

The address is link-local, from the part that machines never choose by themselves (RFC 3927), so it is part of
no network of the host or of a tenant. The certificate is signed by an authority that may sign for this one
name: nodes of tenants need not trust the authority of the API, and it stays the same when another authority
signs for the API.
"""

from dataclasses import dataclass
from ipaddress import IPv4Address

from neocloud.control_plane.gateway_supervisor import workload_port
from neocloud.core.clock import Clock
from neocloud.engines.base import PlatformService
from neocloud.server import CertificateFolder, ensure_certificate
from neocloud.settings.object_settings import STORAGE_SERVICE, storage_host_name
from neocloud.settings.settings import Settings

PORT = 443
_FIRST = IPv4Address("169.254.255.1")


@dataclass(frozen=True)
class WorkloadStorage:
    service: PlatformService
    certificate: CertificateFolder

    def ensure_certificate(self, clock: Clock) -> None:
        """Make or renew the certificate and its authority where needed. Raises OSError, ServerError."""
        names = (self.service.host_name, str(self.service.address))
        ensure_certificate(self.certificate.path, names, clock.now())

    def arguments(self) -> list[str]:
        """Return the options of the object gateway."""
        files = self.certificate
        return [
            f"--workload-host={self.service.address}",
            f"--workload-port={self.service.target_port}",
            *("--workload-certificate", str(files.server), "--workload-key", str(files.server_key)),
        ]


def workload_storage(settings: Settings, clock: Clock) -> WorkloadStorage:
    """Return where workloads reach the object gateway; make its certificate. Raises OSError, ServerError.

    The clouds on one host have numbers, and so addresses, of their own.
    """
    address = _FIRST + settings.cloud_number
    service = PlatformService(
        name=STORAGE_SERVICE,
        host_name=storage_host_name(settings.region),
        address=address,
        port=PORT,
        target_port=workload_port(settings.home, str(address)),
    )
    storage = WorkloadStorage(service, CertificateFolder(settings.certificate_folder / "workloads"))
    storage.ensure_certificate(clock)
    return storage
