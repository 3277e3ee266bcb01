"""The user's terminal, kept clear of what TensorFlow and its converter print."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator

from rich.console import Console

from profiles.errors import StemshareError

QUIET = "STEMSHARE_QUIET"  # set in the environment: no progress is shown


@contextlib.contextmanager
def quiet_terminal() -> Iterator[Console]:
    """Yields a console on the real standard error, while file descriptors 1 and 2 go to a file.

    C++ code writes to the descriptors themselves, so redirecting Python's streams is not enough.
    What the libraries printed is shown if the body raises an error that is not ours.
    """
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    sys.stdout.flush()
    sys.stderr.flush()
    saved = {descriptor: os.dup(descriptor) for descriptor in (1, 2)}
    noise = tempfile.TemporaryFile()  # noqa: SIM115 (closed below, after the descriptors)
    with os.fdopen(os.dup(saved[2]), "w") as real:
        try:
            for descriptor in saved:
                os.dup2(noise.fileno(), descriptor)
            yield Console(file=real, stderr=True, quiet=QUIET in os.environ)
        except StemshareError:
            raise
        except Exception:
            sys.stdout.flush()
            sys.stderr.flush()
            noise.seek(0)
            shutil.copyfileobj(noise, real.buffer)
            raise
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for descriptor, original in saved.items():
                os.dup2(original, descriptor)
                os.close(original)
            noise.close()
