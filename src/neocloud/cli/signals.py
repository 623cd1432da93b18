"""Signals that end a command, for commands that have to clean up."""

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def stopped_by_signals() -> Generator[None, None, None]:
    """Raise an exception in the body for each signal that ends a command: KeyboardInterrupt for Ctrl-C, else
    SystemExit with the exit code of the shell, such as 143 for SIGTERM.

    It is raised at the end of the body again: a library in another language may turn it into an error of its
    own. A second signal does not interrupt the clean-up. Signals that are ignored, as by nohup, stay so.
    """
    caught: list[BaseException] = []

    def stop(number: int, _frame: FrameType | None) -> None:
        if not caught:
            caught.append(KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number))
            raise caught[0]

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {each: signal.getsignal(each) for each in ENDING}
    for each, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(each, stop)
    try:
        yield
    except BaseException:
        if caught:
            raise caught[0] from None
        raise
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    if caught:
        raise caught[0]
