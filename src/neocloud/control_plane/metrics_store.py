"""The store of metrics: VictoriaMetrics as a process of this host, and the list of what it collects.

It listens on loopback, asks for a password, and has no capabilities. Collected samples are trusted with the
label `project` only where the control plane itself is read: for any other source the label is set here, so
that no exporter can write into the series of a project that it does not belong to.
"""

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path

import yaml

from neocloud.control_plane.gateway_supervisor import GatewayKind, GatewayProcess, stop_gateway
from neocloud.control_plane.settings_file import BadSettings
from neocloud.core.metrics import PROJECT_LABEL
from neocloud.core.osfiles import write_file
from neocloud.data_plane.certificate_files import CertificateFiles
from neocloud.data_plane.metrics_keys import (
    STORE_USER,
    ensure_metrics_password,
    gateway_scrape_key_file,
    load_or_make_gateway_scrape_key,
    load_or_make_scrape_key,
    metrics_folder,
    scrape_key_file,
)
from neocloud.server import CertificateFolder, ensure_certificate
from neocloud.settings.settings import Settings

RETENTION = "90d"
CACHE_BYTES = 128 * 1024 * 1024
SCRAPE_SECONDS = 15
MOST_SAMPLES = 200_000
"""Samples of one target at a time; one that has more is not collected."""
SERVER_NAME = "localhost"
"""In the certificate of the control plane for collectors."""
OPERATORS = "operator"
"""The label `project` of what belongs to no project: no project has this id."""
METRICS_STORE = GatewayKind(
    name="metrics store",
    module="",
    folder=metrics_folder,
    log="metrics.log",
    packages=(),
    health="/health",
    port_setting="metrics-port",
    tls_port_setting="",
)


def collectors_certificate(home: Path, now: datetime) -> CertificateFiles:
    """Return the certificate of the control plane for collectors on this machine, made or renewed where
    needed. Its authority is trusted for nothing else. Raises OSError, ServerError."""
    files = _certificate(home)
    metrics_folder(home).mkdir(mode=0o700, parents=True, exist_ok=True)  # keys are in it, too
    ensure_certificate(files.path, (SERVER_NAME,), now)
    return CertificateFiles(files.server, files.server_key)


def _certificate(home: Path) -> CertificateFolder:
    return CertificateFolder(metrics_folder(home) / "certificate")


def scrape_file(home: Path) -> Path:
    return metrics_folder(home) / "scrape.yml"


def targets_folder(home: Path) -> Path:
    """Return the folder in which operators name further targets, in Prometheus's format of files."""
    return metrics_folder(home) / "targets"


def metrics_store(settings: Settings) -> Callable[[], GatewayProcess]:
    """Return what makes the process of the store. Raises BadSettings where it was not built."""
    program = settings.home / "images" / "metrics" / "program"
    if not (program.parent / "image.json").exists():
        raise BadSettings("--metrics needs the store of metrics. Build it: neo image build metrics")

    def make() -> GatewayProcess:
        password = ensure_metrics_password(settings.home)
        load_or_make_scrape_key(settings.home)
        load_or_make_gateway_scrape_key(settings.home)
        targets_folder(settings.home).mkdir(mode=0o700, exist_ok=True)
        if not scrape_file(settings.home).exists():
            write_scrape_file(settings.home, {})
        fixed = [*_without_rights(), *_program(program), *_arguments(settings.home, password)]

        def command(port: int) -> Sequence[str]:
            return [*fixed, f"-httpListenAddr=127.0.0.1:{port}"]

        return GatewayProcess(settings.home, settings.metrics_port, command, kind=METRICS_STORE)

    return make


async def stop_metrics_store(home: Path) -> None:
    await stop_gateway(home, METRICS_STORE)


def _program(folder: Path) -> list[str]:
    """Return the program with its own C library: the host's may be older.

    Its name has the version of the image, so that a process of an earlier one is not adopted.
    """
    version = json.loads((folder.parent / "image.json").read_text())["version"]
    return [
        str(folder / "ld-linux-x86-64.so.2"),
        *("--argv0", f"victoria-metrics-{version}"),
        *("--library-path", str(folder)),
        str(folder / "victoria-metrics"),
    ]


def _without_rights() -> list[str]:
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        return []
    return ["setpriv", "--no-new-privs", "--inh-caps=-all", "--bounding-set=-all", "--"]


def _arguments(home: Path, password: Path) -> list[str]:
    return [
        f"-storageDataPath={metrics_folder(home) / 'data'}",
        f"-retentionPeriod={RETENTION}",
        f"-memory.allowedBytes={CACHE_BYTES}",
        f"-httpAuth.username={STORE_USER}",
        f"-httpAuth.password=file://{password}",
        f"-promscrape.config={scrape_file(home)}",
        "-promscrape.configCheckInterval=5s",
        "-search.latencyOffset=1s",
        "-search.maxQueryDuration=10s",
        "-search.maxQueueDuration=5s",
        "-search.maxConcurrentRequests=8",
        "-search.maxQueryLen=16KiB",
        "-search.maxUniqueTimeseries=50000",
        "-search.maxPointsPerTimeseries=11000",
        "-search.maxSamplesPerQuery=50000000",
        "-search.maxMemoryPerQuery=64MiB",
        "-search.maxSeries=20000",
        "-storage.minFreeDiskSpaceBytes=1GiB",
        "-loggerDisableTimestamps=false",
        "-denyQueryTracing",
    ]


def write_scrape_file(home: Path, addresses: Mapping[str, str]) -> None:
    """Have these processes of the cloud collected, by the name of the job, and the operator's own targets.

    The store reads the file again by itself. `control-plane` alone is believed in what it says of projects,
    and is shown its key, once it has shown its certificate: any user of the host can take the port of a
    process that is down, and then learns nothing that opens the control plane, nor is believed.
    """
    jobs: list[dict[str, object]] = []
    for job, address in sorted(addresses.items()):
        entry: dict[str, object] = {
            "job_name": job,
            "static_configs": [{"targets": [address]}],
            "sample_limit": MOST_SAMPLES,
        }
        is_control_plane = job == "control-plane"
        key = scrape_key_file(home) if is_control_plane else gateway_scrape_key_file(home)
        entry["authorization"] = {"credentials_file": str(key)}
        if is_control_plane:
            trusted = {"ca_file": str(_certificate(home).authority), "server_name": SERVER_NAME}
            entry |= {"scheme": "https", "tls_config": trusted}
        else:
            entry["relabel_configs"] = [{"target_label": PROJECT_LABEL, "replacement": OPERATORS}]
        jobs.append(entry)
    jobs.append(
        {
            "job_name": "operator",
            "file_sd_configs": [{"files": [str(targets_folder(home) / "*.json")]}],
            "sample_limit": MOST_SAMPLES,
            "relabel_configs": [
                # Set where the operator set none: what the target itself says then becomes exported_project.
                {
                    "source_labels": [PROJECT_LABEL],
                    "regex": "",
                    "target_label": PROJECT_LABEL,
                    "replacement": OPERATORS,
                }
            ],
        }
    )
    document = {
        "global": {"scrape_interval": f"{SCRAPE_SECONDS}s", "scrape_timeout": "10s"},
        "scrape_configs": jobs,
    }
    write_file(scrape_file(home), yaml.safe_dump(document, sort_keys=False))
