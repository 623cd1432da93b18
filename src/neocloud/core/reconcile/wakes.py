"""Wake resources for what happens outside of the store.

The store itself wakes those that a change of a row concerns. A wake that is lost, as in a
crash, is made up for by the next resync.
"""

from collections.abc import Callable


class Wakes:
    """Enqueues resources with the worker of a control plane, once there is one: it begins with all of them.

    Call it in the worker's event loop.
    """

    def __init__(self) -> None:
        self._enqueue: Callable[[str], None] | None = None

    def bind(self, enqueue: Callable[[str], None]) -> None:
        self._enqueue = enqueue

    def wake(self, *resource_ids: str) -> None:
        """Reconcile these now; unknown ids are ignored."""
        if self._enqueue is not None:
            for each in resource_ids:
                self._enqueue(each)
