"""The format of a pack: one signed file with all that a device needs, from `toolkit pack`.

It is a plain tar file: `key`, `signature`, `index.json`, then the files of `LIMITS` in their order,
without the last one if the fleet has no key of its aggregator (packs of earlier versions). A pack
for every device of a fleet holds a bundle alone: each device keeps its own credentials.
The signature covers the index, and the index has size and digest of every file. A tar file can
contain links, owners and paths to other folders, so it is not interpreted: each header must be,
byte for byte, that of a file of the expected name and size. Until the signature is verified,
nothing is read but itself, the key and the index.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from broker.durable import sync_path
from broker.errors import NameRefused, TransportError
from broker.protocol.ed25519 import KEY_BYTES, SIGNATURE_BYTES, is_signed
from broker.protocol.topics import check_name
from broker.transport.address import parse_address
from firmware_sim.bundle.reader import FILES, MANIFEST, MODEL, PREDICT, PREFIX
from firmware_sim.errors import PackError

FORMAT = 1  # of the pack; readers refuse any other
EVERYONE = "*"  # in the index, in place of a device
KEY, SIGNATURE, INDEX = "key", "signature", "index.json"
SIGNED_AS = b"stemshare pack 1\n"  # precedes the index, since the key may sign other things as well
BUNDLE, CREDENTIALS = "bundle", "credentials"
CREDENTIAL_FILES = ("ca.pem", "certificate.pem", "key.pem", "password")
AGGREGATOR_KEY = "aggregator.pub"  # whose signature the device believes
_KIB, _MIB = 2**10, 2**20
INDEX_LIMIT = 64 * _KIB
# The most bytes of each file. A pack has exactly these files, in this order; the optional ones may
# be missing.
LIMITS = {
    f"{BUNDLE}/{MANIFEST}": 4 * _MIB,
    **{f"{BUNDLE}/{name}": 512 * _MIB for name in (*FILES, PREFIX, PREDICT)},
    **{f"{CREDENTIALS}/{name}": 64 * _KIB for name in (*CREDENTIAL_FILES, AGGREGATOR_KEY)},
}
OPTIONAL = frozenset(
    {f"{BUNDLE}/{PREFIX}", f"{BUNDLE}/{PREDICT}", f"{CREDENTIALS}/{AGGREGATOR_KEY}"}
)
HIGHEST_VERSION = 2**53  # all readers of JSON represent whole numbers exactly up to here
BLOCK = 512  # bytes; a tar file consists of such blocks
END = bytes(2 * BLOCK)
_PIECE = _MIB


@dataclass(frozen=True)
class Entry:
    """Size and digest of a file, from the index."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Index:
    """The signed part of a pack."""

    fleet: str
    device: str
    version: int
    broker: str
    arguments: tuple[str, ...]  # for the device's command line, as --task digits
    files: Mapping[str, Entry]

    def to_bytes(self) -> bytes:
        files = {name: vars(entry) for name, entry in self.files.items()}
        return json.dumps({"format": FORMAT, **vars(self), "files": files}, indent=1).encode()

    @property
    def is_for_everyone(self) -> bool:
        return self.device == EVERYONE

    @property
    def model(self) -> str:
        """The digest that checkpoints belong to."""
        return self.files[f"{BUNDLE}/{MODEL}"].sha256


def header(name: str, size: int) -> bytes:
    """The one tar header that a file of a pack may have."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o600
    return info.tobuf(tarfile.USTAR_FORMAT)


def padding(size: int) -> bytes:
    return bytes(-size % BLOCK)


def key_text(key: bytes) -> str:
    return key.hex() + "\n"


def read_key(path: Path) -> bytes:
    """Reads a public key, written as hexadecimal digits."""
    try:
        text = path.read_bytes()[: 4 * KEY_BYTES].decode("ascii", "replace").strip()
    except OSError as error:
        raise PackError(f"the key {path} cannot be read ({error.strerror}).") from None
    if not re.fullmatch(rf"[0-9a-f]{{{2 * KEY_BYTES}}}", text):
        raise PackError(f"{path} is not a public key of {2 * KEY_BYTES} hexadecimal digits.")
    return bytes.fromhex(text)


def parse_index(text: bytes) -> Index:
    """Parses a signed index; it is checked, since a newer version may have written it."""
    try:
        table = json.loads(text)
    except (ValueError, RecursionError):
        raise PackError("the pack's index is not JSON.") from None
    if not isinstance(table, dict) or table.pop("format", None) != FORMAT:
        raise PackError(f"the pack is of another format; this version reads {FORMAT}.")
    try:
        index = Index(**table)
        files = {name: Entry(**entry) for name, entry in table["files"].items()}
        check_name("fleet", index.fleet)
        if not index.is_for_everyone:
            check_name("device", index.device)
        parse_address(index.broker)
        good = (
            _is_number(index.version, 1, HIGHEST_VERSION)
            and isinstance(index.arguments, list)
            and all(isinstance(argument, str) for argument in index.arguments)
            and all(re.fullmatch("[0-9a-f]{64}", entry.sha256) for entry in files.values())
        )
    except (KeyError, TypeError, AttributeError, NameRefused, TransportError):
        good = False
    if not good:
        raise PackError("the pack's index does not state what it must.")
    wanted = [name for name in LIMITS if not index.is_for_everyone or name.startswith(BUNDLE)]
    if list(files) != [name for name in wanted if name in files or name not in OPTIONAL]:
        raise PackError("the pack holds other files than a pack has.")
    for name, entry in files.items():
        if not _is_number(entry.bytes, 0, LIMITS[name]):
            raise PackError(f"{name} in the pack is larger than {LIMITS[name]} bytes.")
    return Index(**{**table, "arguments": tuple(index.arguments), "files": files})


def _is_number(value: Any, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most


def read_signed(file: BinaryIO, pack: Path, trusted: bytes | None) -> tuple[bytes, bytes]:
    """Returns the key and the index; raises `PackError` unless the signature is valid."""
    _expect(file, header(KEY, KEY_BYTES), pack)
    key = file.read(KEY_BYTES)
    _expect(file, padding(KEY_BYTES) + header(SIGNATURE, SIGNATURE_BYTES), pack)
    signature = file.read(SIGNATURE_BYTES)
    _expect(file, padding(SIGNATURE_BYTES), pack)
    found = file.read(BLOCK)
    digits = found[124:135]  # the size, octal
    size = int(digits, 8) if re.fullmatch(rb"[0-7]{11}", digits) else 0
    if not 0 < size <= INDEX_LIMIT or found != header(INDEX, size):
        raise _not_a_pack(pack)
    text = file.read(size)
    _expect(file, padding(size), pack)
    if trusted is not None and key != trusted:
        raise PackError(f"{pack} is signed with another key than the one that this device trusts.")
    if not is_signed(SIGNED_AS + text, signature, key):
        raise PackError(f"{pack} was changed after it was signed.")
    return key, text


def unpack(file: BinaryIO, index: Index, text: bytes, pack: Path, draft: Path) -> None:
    """Copies the files after the index to an empty folder; raises `PackError` if one is wrong."""
    _check_size(file, index, len(text), pack)
    folders = [draft / BUNDLE] + [draft / CREDENTIALS] * (not index.is_for_everyone)
    for folder in folders:
        folder.mkdir(mode=0o700)
    for name, entry in index.files.items():
        _expect(file, header(name, entry.bytes), pack)
        _copy(file, draft / name, entry, pack)
        _expect(file, padding(entry.bytes), pack)
    _expect(file, END, pack)
    with _private(draft / INDEX) as copy:
        copy.write(text)
    for name in (*index.files, INDEX):
        sync_path(draft / name)
    for folder in (*folders, draft):
        sync_path(folder)


def _check_size(file: BinaryIO, index: Index, index_bytes: int, pack: Path) -> None:
    """Raises `PackError` if the file is cut off or longer than its index states."""
    sizes = [KEY_BYTES, SIGNATURE_BYTES, index_bytes, *(e.bytes for e in index.files.values())]
    wanted = sum(BLOCK + size + len(padding(size)) for size in sizes) + len(END)
    if os.fstat(file.fileno()).st_size != wanted:
        raise PackError(f"{pack} does not have the {wanted} bytes that its index says.")


def _copy(file: BinaryIO, target: Path, entry: Entry, pack: Path) -> None:
    found, left = hashlib.sha256(), entry.bytes
    with _private(target) as copy:
        while left and (piece := file.read(min(left, _PIECE))):
            found.update(piece)
            copy.write(piece)
            left -= len(piece)
    if left or found.hexdigest() != entry.sha256:
        raise PackError(f"{target.name} in {pack} was changed after it was signed.")


def _private(path: Path) -> BinaryIO:
    """Creates a file that only its owner may read."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def _expect(file: BinaryIO, wanted: bytes, pack: Path) -> None:
    if file.read(len(wanted)) != wanted:
        raise _not_a_pack(pack)


def _not_a_pack(pack: Path) -> PackError:
    return PackError(f"{pack} is damaged, or is not a pack.")
