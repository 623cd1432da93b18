"""User data with something for each module of cloud-init that needs no network, in each form of it."""

import base64
import gzip
import json
import subprocess
from email.mime.application import MIMEApplication
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText
from pathlib import Path
from typing import Any

import yaml

KEY = """-----BEGIN PGP PUBLIC KEY BLOCK-----

mDMEawtwPRYJKwYBBAHaRw8BAQdATq74jZ59WZPy9ooqDJb7cRTQWrIyBhZHrWl0
B33Ct8K0EVRlc3RzIG9mIE5lb2Nsb3VkiJAEExYIADgWIQQN4lHFdO34w+VtSTEF
LHCdQaBg4QUCawtwPQIbAwULCQgHAgYVCgkICwIEFgIDAQIeAQIXgAAKCRAFLHCd
QaBg4WcKAQDMbuEf1GTh3zU1z9XX5awweYUatIOIftLBUreGRk282gEAl8ZFE/CH
UbEycBwmvqdUksgZLUf0DTneWBXjgYlRtg8=
=2V4N
-----END PGP PUBLIC KEY BLOCK-----
"""
"""Of a package archive; its private half is lost."""
PASSWORD = "correct horse"
LISTENER = """\
import http.server
class Listener(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        open("/var/tmp/phoned", "wb").write(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", 8099), Listener).serve_forever()
"""
HANDLER = """\
def list_types():
    return ["text/x-mine"]
def handle_part(data, ctype, filename, payload, frequency="once-per-instance"):
    if ctype == "text/x-mine":
        open("/var/tmp/handled", "w").write(payload)
"""


def user_data(folder: Path, public_key: str) -> str:
    """Return a MIME archive behind a byte order mark and a blank line. Writes keys into the folder."""
    made = MIMEMultipart()

    def add(kind: str, content: str) -> None:
        made.attach(MIMEText(content, kind, "utf-8"))

    add("cloud-config", yaml.safe_dump(_config(folder, public_key), allow_unicode=True))
    add("jinja2", "## template: jinja\n#!/bin/sh\necho {{ v1.instance_id }} >/var/tmp/template\n")
    add("cloud-config-jsonp", json.dumps([{"op": "add", "path": "/final_message", "value": "all is done"}]))
    add(
        "cloud-config-archive",
        yaml.safe_dump([{"type": "text/cloud-config", "content": "timezone: Pacific/Chatham\n"}]),
    )
    add("part-handler", HANDLER)
    add("x-mine", "in my own format\n")
    add("cloud-boothook", "#!/bin/sh\necho hooked >>/var/tmp/boothook\n")
    for kind in ("shellscript", "shellscript-per-boot", "shellscript-per-instance", "shellscript-per-once"):
        add(f"x-{kind}", f"#!/bin/sh\necho Grüße >/var/tmp/{kind}\n")
    packed = gzip.compress(b"#!/bin/sh\necho unpacked >/var/tmp/packed\n")
    made.attach(MIMEApplication(packed, "gzip"))
    return f"\ufeff\n{made.as_string()}"


def _config(folder: Path, public_key: str) -> dict[str, Any]:
    return {
        **_people(folder, public_key),
        **_files_and_disks(folder),
        **_packages_and_services(),
        "hostname": "named-by-config",
        "fqdn": "named-by-config.example.org",
        "manage_etc_hosts": True,
        "locale": "en_GB.UTF-8",
        "keyboard": {"layout": "de"},
        "power_state": {"mode": "poweroff", "delay": 600, "condition": "test -e /var/tmp/shellscript"},
    }


def _people(folder: Path, public_key: str) -> dict[str, Any]:
    alice = {
        "name": "alice",
        "uid": 4321,
        "gecos": "Alice",
        "groups": ["labor"],
        "shell": "/bin/sh",
        "sudo": "ALL=(ALL) NOPASSWD:ALL",
        "ssh_authorized_keys": [public_key],
    }
    own = folder / "host_key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "mine", "-f", own], check=True)
    return {
        "groups": ["labor", {"guild": ["root"]}],
        "users": ["default", alice],
        "chpasswd": {
            "expire": False,
            "users": [{"name": "alice", "password": PASSWORD, "type": "text"}],
        },
        "ssh_pwauth": True,
        "disable_root": False,
        "ssh_authorized_keys": [public_key],
        "ssh_keys": {
            "ed25519_private": own.read_text(),
            "ed25519_public": own.with_suffix(".pub").read_text(),
        },
        "no_ssh_fingerprints": False,
        "ssh": {"emit_keys_to_console": True},
    }


def _files_and_disks(folder: Path) -> dict[str, Any]:
    packed = base64.b64encode(gzip.compress(b"packed\n")).decode()
    disk, path = "/dev/disk/by-id/virtio-data", folder / "authority.pem"
    for_administrators = {"permissions": "0640", "owner": "root:adm"}
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256")
    subprocess.run(
        ["openssl", "req", "-x509", *curve, "-nodes", "-days", "30", "-subj", "/CN=Authority of a test"]
        + ["-keyout", folder / "authority.key", "-out", path],
        check=True,
        capture_output=True,
    )
    return {
        "write_files": [
            {"path": "/var/tmp/file", "content": "Grüße\n"},
            {"path": "/var/tmp/file", "content": "appended\n", "append": True, **for_administrators},
            {"path": "/var/tmp/packed-file", "content": packed, "encoding": "gz+b64"},
            {"path": "/home/alice/late", "content": "late\n", "owner": "alice:alice", "defer": True},
            {"path": "/usr/local/lib/listener.py", "content": LISTENER},
        ],
        "random_seed": {"file": "/var/tmp/seed", "data": "c2VlZA==", "encoding": "base64"},
        "disk_setup": {disk: {"table_type": "gpt", "layout": [50, 50], "overwrite": True}},
        "fs_setup": [
            {"device": f"{disk}-part1", "partition": "none", "filesystem": "ext4", "label": "mine"},
        ],
        "mounts": [["LABEL=mine", "/data", "ext4", "defaults,noatime,nofail", "0", "2"]],
        "swap": {"filename": "/swapfile", "size": 64 * 2**20},
        "ca_certs": {"trusted": [path.read_text()]},
    }


def _packages_and_services() -> dict[str, Any]:
    return {
        "apt": {
            "preserve_sources_list": False,
            "primary": [{"arches": ["default"], "uri": "http://mirror.example.org/debian"}],
            "security": [{"arches": ["default"], "uri": "http://security.example.org/debian"}],
            "http_proxy": "http://proxy.example.org:3128",
            "conf": 'APT::Get::Assume-Yes "true";\n',
            "debconf_selections": {"mine": "demonstration demonstration/question string answer\n"},
            "sources": {
                "mine": {
                    "source": "deb [signed-by=$KEY_FILE] http://packages.example.org/debian trixie main",
                    "key": KEY,
                }
            },
        },
        "apt_pipelining": 5,
        "ntp": {"enabled": True, "servers": ["time.example.org"]},
        "bootcmd": ["echo early >/var/tmp/bootcmd", ["sh", "-c", "echo list >>/var/tmp/bootcmd"]],
        "runcmd": [
            "systemd-run --quiet --unit=listener python3 /usr/local/lib/listener.py",
            "until ss -tln | grep -q 127.0.0.1:8099; do sleep 1; done",
            ["sh", "-c", "hostname >/var/tmp/runcmd"],
        ],
        "phone_home": {
            "url": "http://127.0.0.1:8099/",
            "post": ["instance_id", "pub_key_ed25519"],
            "tries": 3,
        },
    }
