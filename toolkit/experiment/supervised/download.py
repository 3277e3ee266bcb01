"""Downloads CIFAR-10 from its publisher; resumes interrupted downloads and checks the result."""

from __future__ import annotations

import hashlib
import http.client
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from toolkit.errors import ExperimentError
from toolkit.writing import make_folder

DATA = Path("data")  # the folder into which CIFAR-10 is downloaded by default
URL = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
MD5 = "c58f30108f718f92721af3b95e74349a"  # as published beside it
ATTEMPTS = 5  # in a row that bring no new byte
_CHUNK_BYTES = 2**18
_TIMEOUT_SECONDS = 30.0  # without any data
Progress = Callable[[str], None]


def fetch_cifar10(folder: Path, progress: Progress, *, url: str = URL, md5: str = MD5) -> Path:
    """Returns the archive in `folder`; downloads it if it does not exist."""
    archive = folder / url.rsplit("/", 1)[-1]
    if not archive.exists():
        make_folder(folder)
        part = archive.with_name(f"{archive.name}.part")
        _download(url, part, progress)
        if _md5(part) != md5:
            part.unlink()
            raise ExperimentError(
                f"what came from {url} is not CIFAR-10's archive, and was removed; fetch it in "
                "another way and give it as --data."
            )
        part.replace(archive)
    return archive


def _download(url: str, part: Path, progress: Progress) -> None:
    failures = 0
    while True:
        before = part.stat().st_size if part.exists() else 0
        try:
            if _append(url, part, before, progress):
                return
            reason = "the connection was cut"
        except (OSError, http.client.HTTPException) as error:  # URLError is an OSError
            reason = str(getattr(error, "reason", "") or error) or type(error).__name__
        after = part.stat().st_size if part.exists() else 0
        failures = 0 if after > before else failures + 1
        if failures >= ATTEMPTS or not after:
            raise ExperimentError(
                f"CIFAR-10 cannot be downloaded from {url} ({reason}); fetch it in another way and "
                "give the archive or its folder as --data"
                + (f", or try again: {part} keeps what has come." if after else ".")
            )


def _append(url: str, part: Path, have: int, progress: Progress) -> bool:
    """Appends what the server sends from byte `have` on; returns whether the file is complete."""
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        answer = urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return True  # the file has no byte beyond those that have arrived
        raise
    resumed = answer.status == http.HTTPStatus.PARTIAL_CONTENT
    with answer, part.open("ab" if resumed else "wb") as file:
        start = file.tell()
        total = start + int(answer.headers.get("Content-Length", 0))
        while chunk := answer.read(_CHUNK_BYTES):
            file.write(chunk)
            progress(f"downloading CIFAR-10: {file.tell() / 1e6:.0f} of {total / 1e6:.0f} MB")
        return total in (start, file.tell())


def _md5(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "md5").hexdigest()
