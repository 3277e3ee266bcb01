"""The download goes on where it was cut off, and takes nothing but the publisher's bytes."""

import hashlib
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from toolkit.errors import ExperimentError
from toolkit.experiment.supervised.download import fetch_cifar10

CONTENT = bytes(range(256)) * 4000
MD5 = hashlib.md5(CONTENT, usedforsecurity=False).hexdigest()


class Server(ThreadingHTTPServer):
    """Sends at most `most` bytes in one answer, and then cuts the connection."""

    most = len(CONTENT)
    ranges = True
    asked: list[str]


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        wanted = self.headers.get("Range", "") if self.server.ranges else ""
        self.server.asked.append(wanted)
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted else 0
        if self.path == "/missing.tar.gz":
            self.send_error(404)
        elif start >= len(CONTENT):
            self.send_error(416)
        else:
            self.send_response(206 if wanted else 200)
            self.send_header("Content-Length", str(len(CONTENT) - start))
            self.end_headers()
            self.wfile.write(CONTENT[start : start + self.server.most])
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Silence."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as running:
        running.asked = []
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


Fetch = Callable[..., Path]


@pytest.fixture
def fetch(server: Server, tmp_path: Path) -> Fetch:
    def run(name: str = "data.tar.gz", md5: str = MD5) -> Path:
        url = f"http://127.0.0.1:{server.server_port}/{name}"
        return fetch_cifar10(tmp_path, lambda said: None, url=url, md5=md5)

    return run


def test_it_is_fetched_once(fetch: Fetch, server: Server, tmp_path: Path) -> None:
    assert fetch() == tmp_path / "data.tar.gz"
    assert (tmp_path / "data.tar.gz").read_bytes() == CONTENT
    fetch()
    assert server.asked == [""]
    assert [file.name for file in tmp_path.iterdir()] == ["data.tar.gz"]


def test_a_cut_connection_is_taken_up_again(fetch: Fetch, server: Server) -> None:
    server.most = 300_000
    assert fetch().read_bytes() == CONTENT
    assert server.asked == ["", "bytes=300000-", "bytes=600000-", "bytes=900000-"]


def test_what_an_earlier_try_left_is_used(fetch: Fetch, server: Server, tmp_path: Path) -> None:
    (tmp_path / "data.tar.gz.part").write_bytes(CONTENT[:1234])
    assert fetch().read_bytes() == CONTENT
    assert server.asked == ["bytes=1234-"]


def test_all_had_come_but_for_the_name(fetch: Fetch, server: Server, tmp_path: Path) -> None:
    (tmp_path / "data.tar.gz.part").write_bytes(CONTENT)
    assert fetch().read_bytes() == CONTENT


def test_a_server_that_always_sends_everything(
    fetch: Fetch, server: Server, tmp_path: Path
) -> None:
    server.ranges = False
    (tmp_path / "data.tar.gz.part").write_bytes(b"something old")
    assert fetch().read_bytes() == CONTENT


def test_other_bytes_are_refused_and_removed(fetch: Fetch, server: Server, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{server.server_port}/data.tar.gz"
    with pytest.raises(ExperimentError) as caught:
        fetch(md5="0" * 32)
    assert str(caught.value) == (
        f"what came from {url} is not CIFAR-10's archive, and was removed; fetch it in another way "
        "and give it as --data."
    )
    assert list(tmp_path.iterdir()) == []


def test_no_network_is_one_sentence(fetch: Fetch, server: Server, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{server.server_port}/missing.tar.gz"
    with pytest.raises(ExperimentError) as caught:
        fetch("missing.tar.gz")
    assert str(caught.value) == (
        f"CIFAR-10 cannot be downloaded from {url} (Not Found); fetch it in another way and give "
        "the archive or its folder as --data."
    )
    server.most = 0
    (tmp_path / "data.tar.gz.part").write_bytes(CONTENT[:10])
    with pytest.raises(ExperimentError, match=r"or try again: .*data\.tar\.gz\.part keeps what"):
        fetch()
    assert (tmp_path / "data.tar.gz.part").read_bytes() == CONTENT[:10]
