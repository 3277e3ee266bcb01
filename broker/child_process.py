"""Child processes that end with the process that started them, even if that one is killed."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1  # <sys/prctl.h>


def ending_with_parent(number: signal.Signals = signal.SIGTERM) -> Callable[[], None] | None:
    """Returns a function for `preexec_fn` of a Popen; None on systems other than Linux.

    The kernel then sends that signal to the child when the thread that started it ends. So a child
    that is to live as long as the process must be started by a thread that does, such as the main
    thread.
    """
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl  # loaded here: after a fork it is not safe
    parent = os.getpid()

    def tie_to_parent() -> None:
        prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:  # it ended before the call
            os.kill(os.getpid(), signal.SIGKILL)

    return tie_to_parent
