"""Before a sign-in: certificates that are not valid by this machine's clock, clouds of another release."""

import http.server
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest

from neocloud import __version__
from neocloud.client.errors import ClientError, ReleasesApart
from neocloud.client.trust import find_cloud
from neocloud.server import ensure_certificate
from neocloud.server.certificates import SERVER_LIFETIME


@contextmanager
def cloud(folder: Path, signed_at: datetime, clock_ahead: timedelta, answer: bytes = b"{}") -> Iterator[str]:
    """Serve over TLS with a certificate of that time and with that clock; yield the URL."""

    class Server(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer)

        def date_time_string(self, timestamp: float | None = None) -> str:
            return format_datetime(datetime.now(UTC) + clock_ahead, usegmt=True)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    made = ensure_certificate(folder, ("localhost",), signed_at)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.chain_file, made.key_file)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"https://localhost:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def refusal(folder: Path, signed_at: datetime, clock_ahead: timedelta) -> ClientError:
    with (
        cloud(folder, signed_at, clock_ahead) as url,
        pytest.raises(ClientError, match="is not trusted") as caught,
    ):
        find_cloud(url, str(folder / "ca.pem"), "", lambda found: False)
    return caught.value


def test_a_clock_that_is_behind_is_named(tmp_path: Path) -> None:
    days = timedelta(days=2)
    error = refusal(tmp_path, datetime.now(UTC) + days, days)
    assert "not yet valid" in str(error) and "2880 min behind the cloud's" in str(error)
    assert "timedatectl" in error.next_step


def test_a_clock_that_is_ahead_is_named(tmp_path: Path) -> None:
    ago = SERVER_LIFETIME + timedelta(days=1)
    error = refusal(tmp_path, datetime.now(UTC) - ago, -ago)
    assert "expired" in str(error) and "ahead of the cloud's" in str(error)


def test_an_expired_certificate_is_the_operators(tmp_path: Path) -> None:
    error = refusal(tmp_path, datetime.now(UTC) - SERVER_LIFETIME - timedelta(days=1), timedelta())
    assert "expired" in str(error) and "clock" not in str(error)
    assert "neo status" in error.next_step


def test_another_host_that_has_the_name_is_not_trusted(tmp_path: Path) -> None:
    """Two hosts with one name: the name leads to the other one, with an authority of its own."""
    now = datetime.now(UTC)
    ours = ensure_certificate(tmp_path / "ours", ("localhost",), now)
    (tmp_path / "ca.pem").write_bytes(ours.authority)
    with (
        cloud(tmp_path / "theirs", now, timedelta()) as url,
        pytest.raises(ClientError, match="is not trusted") as caught,
    ):
        find_cloud(url, str(tmp_path / "ca.pem"), "", lambda found: True)
    assert "Do not sign in there" in caught.value.next_step and "clock" not in str(caught.value)


def test_a_cloud_of_a_far_release_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    document = {"authority": "", "grpc_port": 7372, "gateway_port": 0}
    now, ca_file = datetime.now(UTC), str(tmp_path / "ca.pem")
    for version in (__version__, "no version", 7, None):
        answer = json.dumps(document | {"version": version}).encode()
        with cloud(tmp_path, now, timedelta(), answer) as url:
            assert find_cloud(url, ca_file, "", lambda found: False).endpoint == "localhost:7372"
    far = json.dumps(document | {"version": "7.5.1"}).encode()
    with cloud(tmp_path, now, timedelta(), far) as url, pytest.raises(ReleasesApart, match=r"neocloud==7\.5"):
        find_cloud(url, ca_file, "", lambda found: False)
