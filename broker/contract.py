"""The contract of a fleet: what an update must be before anything is computed with it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from broker.messages import DeviceState, Reason, Refused, Update, from_bytes
from broker.slice import SharedTensor, Slice, Tensors, first_difference
from broker.topics import NameRefused, check_name
from broker.wire import HEADER_LIMIT, Array, Oversized, WireError

EXCHANGES = ("delta", "gradient")
MAX_SAMPLES = 10**9
LARGEST_NORM = 1e12  # of a tensor in an update; sums and squares of it stay far from overflow
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
        return cls({t.name: t for t in known.tensors}, known.fingerprint, exchange, run)

    @cached_property
    def largest_message(self) -> int:
        """Bytes of an update that holds every tensor, with room for its header."""
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
        """An update that may be merged; otherwise `Refused` with the first thing wrong."""
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
        self._check_tensors(update)
        return update

    def _check_tensors(self, update: Update) -> None:
        if not update.tensors:
            raise Refused(Reason.WRONG_NAME, "the update holds no tensor.")
        for name, tensor in update.tensors.items():
            if name not in self.known:
                raise Refused(Reason.WRONG_NAME, f"the fleet knows no tensor {name[:80]!r}.")
            known = self.known[name]
            if tensor.shape != known.shape:
                raise Refused(
                    Reason.WRONG_SHAPE,
                    f"tensor {name!r} has shape {tensor.shape}, and in the fleet {known.shape}.",
                )
            if tensor.dtype != known.dtype:
                raise Refused(
                    Reason.WRONG_DTYPE, f"tensor {name!r} is {tensor.dtype}, not {known.dtype}."
                )
        if update.fingerprint != self.fingerprint_of(update.tensors):
            raise Refused(
                Reason.WRONG_FINGERPRINT,
                "the update's fingerprint is not that of its tensors in this fleet.",
            )
        with np.errstate(all="ignore"):
            for name, tensor in update.tensors.items():
                if not _is_reasonable(tensor):
                    raise Refused(
                        Reason.NOT_FINITE,
                        f"tensor {name!r} holds NaN, infinity, or numbers beyond all training.",
                    )

    def fingerprint_of(self, tensors: Tensors) -> str:
        """Of the slice that consists of these tensors as the fleet knows them."""
        return Slice.of(self.known[name] for name in tensors).fingerprint


def _reason(error: WireError) -> Reason:
    return Reason.OVERSIZED if isinstance(error, Oversized) else Reason.MALFORMED


def _check_sender(claimed: str, sender: str) -> None:
    try:
        check_name("device", sender)
    except NameRefused as error:
        raise Refused(Reason.FOREIGN, str(error)) from None
    if claimed != sender:
        raise Refused(Reason.FOREIGN, "the message names another device than its topic.")


def _is_reasonable(array: Array) -> bool:
    """No NaN, no infinity, and a norm that no training reaches: √(x·x) ≤ LARGEST_NORM.

    One product finds all three, because NaN and infinity stay what they are in it.
    """
    flat = array.reshape(-1)
    return bool(flat @ flat <= LARGEST_NORM**2)
