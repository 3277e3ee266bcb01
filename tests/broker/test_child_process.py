"""A child that is tied to its parent ends with it, also when the parent is killed."""

import signal
import subprocess
import sys
from pathlib import Path

from broker.child_process import ending_with_parent
from tests.harness.waiting import wait_until

PARENT = """\
import subprocess, sys
from broker.child_process import ending_with_parent
child = subprocess.Popen(["sleep", "600"], preexec_fn=ending_with_parent())
print(child.pid, flush=True)
child.wait()
"""


def test_the_child_of_a_killed_process_ends() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = Path("/proc") / parent.stdout.readline().strip()
        assert child.exists()
        parent.kill()
        wait_until(lambda: not child.exists(), "the end of the child")


def test_a_child_lives_as_long_as_its_parent_does() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, preexec_fn=ending_with_parent()) as child:
        assert child.poll() is None
        child.terminate()
    assert child.returncode == -signal.SIGTERM
