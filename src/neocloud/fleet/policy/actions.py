# pyright: standard
"""Actions on a node or one of its parts after a fault, and the tests that verify them."""

from enum import StrEnum


class Action(StrEnum):
    """The repair ladder, from what disturbs least to what takes a part away; a later rung includes what the
    earlier ones would have done."""

    NONE = "none"
    RESTART_APP = "restart_app"
    RESET_GPU = "reset_gpu"
    REBOOT = "reboot"
    POWER_CYCLE = "power_cycle"
    REIMAGE = "reimage"
    TRIAGE = "triage"
    RMA = "rma"

    @property
    def rung(self) -> int:
        """Position on the ladder; 0 is not an action."""
        return _RUNGS[self]


_RUNGS = {each: rung for rung, each in enumerate(Action)}


class Suite(StrEnum):
    """Tests that a verification runs."""

    QUICK = "quick"
    FULL = "full"
