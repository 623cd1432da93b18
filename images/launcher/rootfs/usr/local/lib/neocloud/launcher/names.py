"""DNS for the guest: the names of its network from the pod's hosts file, and of the metadata service.

Every other name is refused, so that the guest uses its next server: a configured one, else the pod's own.
"""

import signal
import subprocess
from ipaddress import AddressValueError, IPv4Address
from pathlib import Path

from launcher.network import METADATA_ADDRESS

HOSTS = Path("/etc/hosts")
RESOLVER = Path("/etc/resolv.conf")
METADATA_NAME = "metadata.nebius.internal"


def nameservers_of(resolver: str) -> list[IPv4Address]:
    """Return the servers of a resolv.conf that a guest can reach too, without those of this host alone."""
    found = []
    for line in resolver.splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == "nameserver":
            try:
                address = IPv4Address(words[1])
            except AddressValueError:
                continue
            if not address.is_loopback and not address.is_link_local:
                found.append(address)
    return found


def dnsmasq_command(domain: str, log: Path, hosts: Path = HOSTS) -> list[str]:
    words = ["dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--user=nobody", "--group=nogroup"]
    words += [f"--listen-address={METADATA_ADDRESS}", "--bind-interfaces", "--no-resolv", "--pid-file="]
    words += ["--no-hosts", f"--addn-hosts={hosts}", "--local-ttl=5", f"--log-facility={log}"]
    words += [f"--host-record={METADATA_NAME},{METADATA_ADDRESS}"]
    if domain:
        words += [f"--domain={domain}", "--expand-hosts", f"--local=/{domain}/"]
    return words


class Names:
    """Run dnsmasq, keep it running, and signal it when the hosts file has changed."""

    def __init__(self, command: list[str], hosts: Path = HOSTS) -> None:
        self._command, self._hosts = command, hosts
        self._seen = self._stamp()
        self._process = self._start()

    def refresh(self) -> None:
        """Check the hosts file; cheap enough to be called often."""
        if self._process.poll() is not None:
            self._process = self._start()
        elif (stamp := self._stamp()) != self._seen:
            self._seen = stamp
            self._process.send_signal(signal.SIGHUP)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()

    def _start(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def _stamp(self) -> tuple[int, int, int]:
        try:
            found = self._hosts.stat()
        except OSError:
            return (0, 0, 0)
        return (found.st_mtime_ns, found.st_size, found.st_ino)
