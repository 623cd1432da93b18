"""ARP on one interface (RFC 5227): ask whether another machine has an address, announce addresses, listen.

Blocking, except for the listener; needs root.
"""

import asyncio
import select
import socket
import struct
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address

PROBE_SECONDS = 1.0
"""How long a probe waits for an answer; machines on one network answer in milliseconds."""
_PROBES = 3
"""How often it asks in that time, in case a packet is lost."""
_FRAMES_AT_ONCE = 64
"""How many the listener reads before its loop does other work."""
_ETHERTYPE = 0x0806
_BODY = struct.Struct("!HHBBH6s4s6s4s")
_HEADER = 14
_REQUEST, _REPLY = 1, 2
_EVERYBODY = b"\xff" * 6
_NOBODY = bytes(6)
_NO_ADDRESS = IPv4Address(0)


@dataclass(frozen=True)
class Message:
    """A received ARP message."""

    sender_mac: str
    sender: IPv4Address
    target: IPv4Address
    is_request: bool


def probe(interface: str, addresses: Iterable[IPv4Address]) -> dict[IPv4Address, str]:
    """Return the addresses that other machines on the interface have or want, each with its MAC.

    Raises OSError when the interface is missing or down.
    """
    open_addresses = set(addresses)
    found: dict[IPv4Address, str] = {}
    began = time.monotonic()
    with _socket(interface) as wire:
        mac = _mac(wire)
        for number in range(_PROBES):
            for address in open_addresses - found.keys():
                wire.send(frame(mac, _NO_ADDRESS, address))
            until = began + PROBE_SECONDS * (number + 1) / _PROBES
            while found.keys() != open_addresses and (rest := until - time.monotonic()) > 0:
                if select.select([wire], [], [], rest)[0]:
                    message = read_message(wire.recv(1514))
                    found |= claimed(message, mac, open_addresses) if message else {}
    return found


def announce(interface: str, addresses: Iterable[IPv4Address]) -> None:
    """Tell all machines on the interface, by gratuitous ARP, that the addresses are here. Raises OSError."""
    with _socket(interface) as wire:
        mac = _mac(wire)
        for address in addresses:
            # Some machines learn from requests only, others from replies only.
            wire.send(frame(mac, address, address))
            wire.send(frame(mac, address, address, is_reply=True))


class Listener:
    """Hears the ARP messages of other machines on one interface, in the event loop that runs."""

    def __init__(self, interface: str, heard: Callable[[Message], None]) -> None:
        """Raises OSError when the interface is missing or down."""
        self._wire, self._heard = _socket(interface), heard
        self._wire.setblocking(False)
        self._mac = _mac(self._wire)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._wire, self._read)

    def close(self) -> None:
        if not self._loop.is_closed():
            self._loop.remove_reader(self._wire)
        self._wire.close()

    def _read(self) -> None:
        for _ in range(_FRAMES_AT_ONCE):
            try:
                message = read_message(self._wire.recv(1514))
            except OSError:  # there are no more, or the interface has gone down
                return
            if message is not None and message.sender_mac != self._mac:
                self._heard(message)


def frame(mac: str, sender: IPv4Address, target: IPv4Address, *, is_reply: bool = False) -> bytes:
    """Return an Ethernet frame to everybody."""
    own = bytes.fromhex(mac.replace(":", ""))
    operation, target_mac = (_REPLY, _EVERYBODY) if is_reply else (_REQUEST, _NOBODY)
    body = _BODY.pack(1, 0x0800, 6, 4, operation, own, sender.packed, target_mac, target.packed)
    return _EVERYBODY + own + struct.pack("!H", _ETHERTYPE) + body


def read_message(content: bytes) -> Message | None:
    """Return the ARP message of an Ethernet frame; None for whatever else it holds."""
    if len(content) < _HEADER + _BODY.size or content[12:14] != struct.pack("!H", _ETHERTYPE):
        return None
    kind, protocol, mac_size, size, operation, mac, sender, _, target = _BODY.unpack_from(content, _HEADER)
    if (kind, protocol, mac_size, size) != (1, 0x0800, 6, 4) or operation not in (_REQUEST, _REPLY):
        return None
    return Message(mac.hex(":"), IPv4Address(sender), IPv4Address(target), operation == _REQUEST)


def claimed(message: Message, mac: str, addresses: set[IPv4Address]) -> Mapping[IPv4Address, str]:
    """Return the address that another machine has or wants, with its MAC, if it is one of `addresses`."""
    if message.sender_mac == mac:
        return {}
    if message.sender in addresses:
        return {message.sender: message.sender_mac}
    # A probe of another machine, which is about to take the address.
    if message.is_request and message.sender == _NO_ADDRESS and message.target in addresses:
        return {message.target: message.sender_mac}
    return {}


def _mac(wire: socket.socket) -> str:
    address: bytes = wire.getsockname()[4]
    return address.hex(":")


def _socket(interface: str) -> socket.socket:
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    try:
        wire.bind((interface, _ETHERTYPE))
    except OSError:
        wire.close()
        raise
    return wire
