"""What readers see of a spec: never its secrets, which are values of variables and contents of files."""

from datetime import datetime
from typing import Any

from neocloud.core.store.protocol import Transaction


def without_secrets(workload: Any, tx: Transaction, now: datetime) -> None:
    for variable in workload.spec.environment_variables:
        variable.ClearField("value")
    for file in workload.spec.injected_files:
        file.ClearField("content")
