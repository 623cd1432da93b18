"""Listeners at the address that root announces: only sockets that would take a connection to it count."""

import socket
from collections.abc import Mapping
from pathlib import Path

import pytest

from neocloud.core.announcements import is_served_by_root

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


def table(folder: Path, listeners: Mapping[str, int]) -> Path:
    path = folder / "tcp"
    rows = (f"   0: {at} 00000000:0000 0A 0:0 00:0 0 {owner} 0 1\n" for at, owner in listeners.items())
    path.write_text(HEAD + "".join(rows))
    return path


@pytest.mark.parametrize(
    ("listeners", "is_root"),
    [
        ({"0100007F:1F90": 0}, True),
        ({"00000000:1F90": 0}, True),
        ({"0100007F:1F90": 0, "0200007F:1F90": 1000}, True),  # 127.0.0.2
        ({"0100007F:1F90": 0, "00000000:1F90": 1000}, False),
        ({"0100007F:1F90": 1000}, False),
        ({"0200007F:1F90": 0}, False),
        ({"0000000000000000FFFF00000100007F:1F90": 1000}, False),
        ({"0" * 32 + ":1F90": 1000}, False),
        ({"0100007F:1F91": 0}, False),
    ],
)
def test_who_would_be_reached_counts(tmp_path: Path, listeners: Mapping[str, int], is_root: bool) -> None:
    assert is_served_by_root("127.0.0.1:8080", [table(tmp_path, listeners)]) is is_root


def test_a_real_socket_is_found_by_its_address() -> None:
    with socket.create_server(("127.0.0.3", 0)) as listener:
        port = listener.getsockname()[1]
        owners = {is_served_by_root(f"127.0.0.{last}:{port}") for last in (1, 2)}
    assert owners == {False}
