"""The slice: the tensors a device shares, and whether it fits the slices a fleet knows."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from broker.errors import SliceError

Tensors = dict[str, npt.NDArray[np.float32]]
_SHA256 = re.compile(r"[0-9a-f]{64}")
_SHORT_SHA256 = re.compile(r"[A-Za-z0-9+/]{43}")


@dataclass(frozen=True)
class SharedTensor:
    """One tensor of a slice; `role` is canonical JSON, or empty where only its digest is known."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    fingerprint: str
    role: str = ""

    @classmethod
    def of(cls, name: str, shape: tuple[int, ...], dtype: str, role: str) -> SharedTensor:
        what = {"name": name, "shape": shape, "dtype": dtype, "role": role}
        return cls(name, shape, dtype, json_digest(what), role)


@dataclass(frozen=True)
class Slice:
    """Shared tensors in the order in which data passes them."""

    tensors: tuple[SharedTensor, ...]
    fingerprint: str

    @classmethod
    def of(cls, tensors: Iterable[SharedTensor]) -> Slice:
        tensors = tuple(tensors)
        return cls(tensors, json_digest(sorted(tensor.fingerprint for tensor in tensors)))


def union(slices: Iterable[Slice]) -> Slice:
    """Returns all tensors of all slices; raises `SliceError` if two slices disagree on one."""
    known = Slice.of(())
    for new in slices:
        names = {tensor.name for tensor in known.tensors}
        common = Slice.of(tensor for tensor in new.tensors if tensor.name in names)
        if difference := first_difference(common, known):
            said = difference.replace("on the device", "in one").replace(
                "in the fleet", "in others"
            )
            raise SliceError(f"two slices contradict each other: {said}")
        known = Slice.of((*known.tensors, *(t for t in new.tensors if t.name not in names)))
    return known


def first_difference(device: Slice, known: Slice) -> str | None:
    """Returns why the device may not join the fleet that knows `known`; None if it may."""
    fleet = {tensor.name: tensor for tensor in known.tensors}
    for tensor in device.tensors:
        if tensor.name not in fleet:
            return f"the device shares tensor {tensor.name!r}, which the fleet does not know."
        other = fleet[tensor.name]
        if tensor.fingerprint != other.fingerprint:
            return f"tensor {tensor.name!r} {_difference(tensor, other)}."
    return None


def _difference(mine: SharedTensor, theirs: SharedTensor) -> str:
    for what in ("shape", "dtype"):
        a, b = getattr(mine, what), getattr(theirs, what)
        if a != b:
            return f"has {what} {a} on the device and {b} in the fleet"
    if not (mine.role and theirs.role):
        return "has another role on the device than in the fleet"
    a, b = json.loads(mine.role), json.loads(theirs.role)
    for part, verb in (("uses", "used by"), ("follows", "followed by")):
        ops = [", ".join(o["op"] for o in role[part]) or "nothing" for role in (a, b)]
        if ops[0] != ops[1]:
            return f"is {verb} {ops[0]} on the device and {ops[1]} in the fleet"
        for x, y in zip(a[part], b[part], strict=True):
            for key in sorted({*x["attributes"], *y["attributes"]}):
                values = [o["attributes"].get(key, "unset") for o in (x, y)]
                if values[0] != values[1]:
                    setting = f"{key} {values[0]} on the device and {values[1]} in the fleet"
                    return f"is {verb} {x['op']} with {setting}"
            if x["inputs"] != y["inputs"]:
                return f"is {verb} {x['op']}, which something else feeds than in the fleet"
    return "has another role on the device than in the fleet"


def json_digest(what: Any) -> str:
    """Returns the SHA-256 of the canonical JSON of a value."""
    return hashlib.sha256(canonical_json(what).encode()).hexdigest()


def canonical_json(what: Any) -> str:
    """Returns JSON that is the same for equal values: sorted keys, no spaces."""
    return json.dumps(what, sort_keys=True, separators=(",", ":"))


def short_fingerprint(fingerprint: str) -> str:
    """Returns a SHA-256 in 43 characters instead of 64; any other text unchanged."""
    if not _SHA256.fullmatch(fingerprint):
        return fingerprint
    return base64.b64encode(bytes.fromhex(fingerprint)).decode().rstrip("=")


def whole_fingerprint(text: str) -> str:
    """Returns the SHA-256 that `short_fingerprint` made short; any other text unchanged."""
    if not _SHORT_SHA256.fullmatch(text):
        return text
    fingerprint = base64.b64decode(text + "=").hex()
    return fingerprint if short_fingerprint(fingerprint) == text else text
