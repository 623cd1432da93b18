# pyright: strict
"""Long-running operations: rows that say what was asked for, how far it is and how it ended.

They are written in the same transaction as the change they speak of, so an operation is never ahead of its
resource or behind it. They outlive their resource.
"""

from neocloud.core.operations.endings import (
    abort_unfinished,
    finish,
    finish_for,
    finish_removed,
    is_delete,
)
from neocloud.core.operations.progress import ProgressStep, StepOutcome, report_progress

__all__ = [
    "ProgressStep",
    "StepOutcome",
    "abort_unfinished",
    "finish",
    "finish_for",
    "finish_removed",
    "is_delete",
    "report_progress",
]
