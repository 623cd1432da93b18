"""dstack's own Nebius backend from offer to termination; run by dstack's Python, in test_dstack.py.

    python drive_dstack.py CREDENTIALS PROJECT REGION PLATFORM PRESET PUBLIC_KEY_FILE

Prints one JSON line a step and waits for a line on standard input before it terminates the instance. Only the
offer is made by hand: the public catalogue that dstack takes offers from lies on the internet.
"""

import json
import sys
import time
from pathlib import Path

from dstack._internal.core.backends.nebius.compute import NebiusCompute
from dstack._internal.core.backends.nebius.models import NebiusConfig, NebiusServiceAccountCreds
from dstack._internal.core.errors import NotYetTerminated
from dstack._internal.core.models.backends.base import BackendType
from dstack._internal.core.models.instances import (
    Disk,
    InstanceAvailability,
    InstanceConfiguration,
    InstanceOfferWithAvailability,
    InstanceType,
    Resources,
    SSHKey,
)

DEADLINE_SECONDS = 180


def say(step: str, **facts: object) -> None:
    sys.stdout.write(json.dumps({"step": step, **facts}) + "\n")
    sys.stdout.flush()


def compute(credentials: Path, project: str) -> NebiusCompute:
    subject = json.loads(credentials.read_text())["subject-credentials"]
    account = NebiusServiceAccountCreds(
        service_account_id=subject["sub"],
        public_key_id=subject["kid"],
        private_key_content=subject["private-key"],
    )
    return NebiusCompute(NebiusConfig(creds=account, projects=[project]))


def offer(region: str, platform: str, preset: str) -> InstanceOfferWithAvailability:
    resources = Resources(cpus=2, memory_mib=8192, gpus=[], spot=False, disk=Disk(size_mib=40 * 1024))
    return InstanceOfferWithAvailability(
        backend=BackendType.NEBIUS,
        instance=InstanceType(name=f"{platform} {preset}", resources=resources),
        region=region,
        price=0.1,
        availability=InstanceAvailability.UNKNOWN,
    )


def main() -> None:
    credentials, project, region, platform, preset, key = sys.argv[1:]
    backend = compute(Path(credentials), project)
    configuration = InstanceConfiguration(
        project_name="main",
        instance_name="dstack-test",
        user="admin",
        ssh_keys=[SSHKey(public=Path(key).read_text())],
    )
    data = backend.create_instance(offer(region, platform, preset), configuration, None)
    say("created", instance_id=data.instance_id)
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not data.hostname:
        assert time.monotonic() < deadline, "no address was given in time"
        time.sleep(1)
        backend.update_provisioning_data(data, "", "")
    say("address", hostname=data.hostname, internal_ip=data.internal_ip)
    sys.stdin.readline()  # comes when the guest has let somebody in
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        assert time.monotonic() < deadline, "not terminated in time"
        try:
            backend.terminate_instance(data.instance_id, region, data.backend_data)
            break
        except NotYetTerminated:
            time.sleep(1)
    say("terminated")


if __name__ == "__main__":
    main()
