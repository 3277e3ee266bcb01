"""The contract of a fleet: what an update must be before anything is computed with it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from broker.messages import DeviceState, Reason, Refused, Update, from_bytes
from broker.quantisation import (
    ENCODINGS,
    LARGEST_VALUE,
    SCALE,
    are_codes,
    are_scales,
    decode_tensors,
    layout,
)
from broker.slice import SharedTensor, Slice, SliceError, Tensors, first_difference
from broker.topics import NameRefused, check_name
from broker.wire import HEADER_LIMIT, Array, Oversized, WireError

EXCHANGES = ("delta", "gradient")
MAX_SAMPLES = 10**9
LARGEST_NORM = (
    LARGEST_VALUE  # of a tensor in an update; sums and squares of it stay far from overflow
)
_NONCE_LENGTH = 64  # characters at most


@dataclass(frozen=True)
class Contract:
    """The tensors that the fleet knows, what its devices exchange, and the run they are in."""

    known: Mapping[str, SharedTensor]
    fingerprint: str
    exchange: str
    run: str

    @classmethod
    def of(cls, known: Slice, *, exchange: str, run: str) -> Contract:
        for tensor in known.tensors:
            if tensor.name.startswith(SCALE):
                raise SliceError(
                    f"no shared tensor can be called {tensor.name!r}: in updates {SCALE!r} "
                    "precedes the name of the tensor that a scale belongs to."
                )
        return cls({t.name: t for t in known.tensors}, known.fingerprint, exchange, run)

    @cached_property
    def largest_message(self) -> int:
        """Bytes of an update that holds every tensor, with room for its header.

        float32 is the largest encoding of any tensor, scales included.
        """
        return HEADER_LIMIT + sum(4 * math.prod(t.shape) for t in self.known.values())

    def check_birth(self, payload: bytes, sender: str) -> DeviceState:
        """The birth or death of a device that may be in this fleet; otherwise `Refused`."""
        try:
            state = from_bytes(DeviceState, payload)
            slice_ = state.slice()
        except WireError as error:
            raise Refused(_reason(error), str(error)) from None
        _check_sender(state.device, sender)
        if not state.online:
            return state
        if not slice_.tensors:
            raise Refused(Reason.WRONG_NAME, "the device shares no tensor.")
        order = {name: place for place, name in enumerate(self.known)}  # JSON sorts by name
        met = sorted(slice_.tensors, key=lambda t: order.get(t.name, len(order)))
        if difference := first_difference(Slice.of(met), Slice.of(self.known.values())):
            raise Refused(Reason.WRONG_FINGERPRINT, difference)
        return state

    def check_update(self, payload: bytes, sender: str) -> Update:
        """An update that may be merged, in float32; otherwise `Refused` with what is wrong."""
        try:
            update = from_bytes(Update, payload, limit=self.largest_message)
        except WireError as error:
            raise Refused(_reason(error), str(error)) from None
        _check_sender(update.device, sender)
        if update.run != self.run:
            raise Refused(Reason.FOREIGN, "the update belongs to another run of the fleet.")
        if not 0 < len(update.nonce) <= _NONCE_LENGTH or not 0 <= update.round < 2**53:
            raise Refused(Reason.MALFORMED, "the update's nonce or round cannot be right.")
        if update.exchange != self.exchange:
            raise Refused(
                Reason.WRONG_EXCHANGE,
                f"the fleet exchanges {self.exchange}s; the update is a {update.exchange[:20]!r}.",
            )
        if not 0 < update.samples <= MAX_SAMPLES:
            raise Refused(
                Reason.BAD_SAMPLES, f"a device holds 1 to {MAX_SAMPLES} samples, not that many."
            )
        if update.encoding not in ENCODINGS:
            raise Refused(
                Reason.WRONG_ENCODING,
                f"numbers are sent as {', '.join(ENCODINGS)}, not as {update.encoding[:20]!r}.",
            )
        self._check_tensors(update)
        update = self._decoded(update)
        _check_values(update.tensors)
        return update

    def read_checked(self, payload: bytes) -> Update:
        """An update that was checked before, as those of the journal, in float32."""
        return self._decoded(from_bytes(Update, payload, limit=self.largest_message))

    def _decoded(self, update: Update) -> Update:
        shapes = {n: self.known[n].shape for n in update.tensors if n in self.known}
        tensors = decode_tensors(update.tensors, update.encoding, shapes)
        return replace(update, encoding="float32", tensors=tensors)

    def _check_tensors(self, update: Update) -> None:
        """Everything that can be known before the codes are multiplied by their scales."""
        if not update.tensors:
            raise Refused(Reason.WRONG_NAME, "the update holds no tensor.")
        encoding = "" if update.encoding == "float32" else f" as {update.encoding}"
        expected = self._expected(update)
        for name, tensor in update.tensors.items():
            if name not in expected:
                raise Refused(Reason.WRONG_NAME, f"the fleet knows no tensor {name[:80]!r}.")
            dtype, shape = expected[name]
            if tensor.shape != shape:
                raise Refused(
                    Reason.WRONG_SHAPE,
                    f"tensor {name!r} has shape {tensor.shape}{encoding}, "
                    f"and in the fleet {shape}.",
                )
            if tensor.dtype != dtype:
                raise Refused(
                    Reason.WRONG_DTYPE, f"tensor {name!r} is {tensor.dtype}{encoding}, not {dtype}."
                )
        if missing := expected.keys() - update.tensors.keys():
            raise Refused(Reason.WRONG_NAME, f"the update lacks {min(missing)!r}.")
        values = {name: self.known[name] for name in update.tensors if name in self.known}
        if update.fingerprint != Slice.of(values.values()).fingerprint:
            raise Refused(
                Reason.WRONG_FINGERPRINT,
                "the update's fingerprint is not that of its tensors in this fleet.",
            )
        for name, known in values.items():
            scale = update.tensors.get(SCALE + name)
            if scale is not None and not are_scales(scale):
                raise Refused(
                    Reason.BAD_SCALE,
                    f"tensor {name!r} has a scale that is NaN, not positive, or far too large.",
                )
            if not are_codes(update.tensors[name], math.prod(known.shape)):
                raise Refused(
                    Reason.BAD_CODE, f"tensor {name!r} holds a code that {update.encoding} lacks."
                )

    def _expected(self, update: Update) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Type and shape of all that travels for the tensors which the update names."""
        expected = {}
        for name in update.tensors:
            if known := self.known.get(name):
                how = layout(known.shape, update.encoding)
                expected[name] = how.dtype, how.shape
                if how.scales is not None:
                    expected[SCALE + name] = "float32", how.scales
        return expected


def _reason(error: WireError) -> Reason:
    return Reason.OVERSIZED if isinstance(error, Oversized) else Reason.MALFORMED


def _check_sender(claimed: str, sender: str) -> None:
    try:
        check_name("device", sender)
    except NameRefused as error:
        raise Refused(Reason.FOREIGN, str(error)) from None
    if claimed != sender:
        raise Refused(Reason.FOREIGN, "the message names another device than its topic.")


def _check_values(tensors: Tensors) -> None:
    with np.errstate(all="ignore"):
        for name, tensor in tensors.items():
            if not _is_reasonable(tensor):
                raise Refused(
                    Reason.NOT_FINITE,
                    f"tensor {name!r} holds NaN, infinity, or numbers beyond all training.",
                )


def _is_reasonable(array: Array) -> bool:
    """No NaN, no infinity, and a norm that no training reaches: √(x·x) ≤ LARGEST_NORM.

    One product finds all three, because NaN and infinity stay what they are in it.
    """
    flat = array.reshape(-1)
    return bool(flat @ flat <= LARGEST_NORM**2)
