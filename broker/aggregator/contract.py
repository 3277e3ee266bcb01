"""The contract of a fleet: what is checked in an update before anything is computed with it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from broker.errors import NameRefused, Oversized, SliceError, WireError
from broker.protocol.messages import DeviceState, Reason, Refused, Update, from_bytes
from broker.protocol.quantisation import (
    BETWEEN,
    ENCODINGS,
    EVERYTHING,
    LARGEST_VALUE,
    PACKED,
    Shapes,
    bad_code,
    bad_scale,
    decode_tensors,
    packed_bytes,
    packed_name,
)
from broker.protocol.slice import SharedTensor, Slice, first_difference
from broker.protocol.topics import check_name
from broker.protocol.wire import HEADER_LIMIT, Array

EXCHANGES = ("delta", "gradient")
MAX_SAMPLES = 10**9
LARGEST_NORM = LARGEST_VALUE  # of a tensor in an update: no overflow in sums and squares
_NONCE_LENGTH = 64  # characters at most
_SLICES_REMEMBERED = 64


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
            if tensor.name == EVERYTHING or BETWEEN in tensor.name:
                raise SliceError(
                    f"no shared tensor can be called {tensor.name!r}: in updates {EVERYTHING!r} "
                    "stands for all tensors, and names are listed one a line."
                )
        return cls({t.name: t for t in known.tensors}, known.fingerprint, exchange, run)

    @cached_property
    def largest_message(self) -> int:
        """The number of bytes of an update that holds every tensor, with room for its header.

        float32 is the largest encoding of any tensor, scales included; the codes of an empty tensor
        have a scale of two bytes, for which the header has room.
        """
        return HEADER_LIMIT + sum(4 * math.prod(t.shape) for t in self.known.values())

    @cached_property
    def _fingerprint_of(self) -> Callable[[tuple[str, ...]], str]:
        """Returns the fingerprint of the tensors with these names; devices repeat theirs."""
        return lru_cache(_SLICES_REMEMBERED)(
            lambda names: Slice.of(self.known[name] for name in names).fingerprint
        )

    def check_birth(self, payload: bytes, sender: str) -> DeviceState:
        """Returns a birth or a will; raises `Refused` if the device cannot be in this fleet."""
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
        order = {name: place for place, name in enumerate(self.known)}  # JSON sorted them by name
        met = sorted(slice_.tensors, key=lambda t: order.get(t.name, len(order)))
        if difference := first_difference(Slice.of(met), Slice.of(self.known.values())):
            raise Refused(Reason.WRONG_FINGERPRINT, difference)
        return state

    def check_update(self, payload: bytes, sender: str) -> Update:
        """Returns the update in float32; raises `Refused` if it may not be merged."""
        update = self._parsed(payload)
        _check_sender(update.device, sender)
        return self._checked(update)

    def check_record(self, payload: bytes) -> Update:
        """Returns an update of the journal; raises `Refused` if no such one was ever accepted."""
        return self._checked(self._parsed(payload))

    def _parsed(self, payload: bytes) -> Update:
        try:
            return from_bytes(Update, payload, limit=self.largest_message)
        except WireError as error:
            raise Refused(_reason(error), str(error)) from None

    def _checked(self, update: Update) -> Update:
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
        _check_values(update)
        return update

    def _decoded(self, update: Update) -> Update:
        shapes = {name: self.known[name].shape for name in self._names(update)}
        tensors = decode_tensors(update.tensors, update.encoding, shapes)
        return replace(update, encoding="float32", tensors=tensors)

    def _names(self, update: Update) -> list[str]:
        """Returns the names of the tensors that the update claims to hold, known or not."""
        if update.encoding not in PACKED:
            return list(update.tensors)
        (name,) = update.tensors
        return list(self.known) if name == EVERYTHING else name.split(BETWEEN)

    def _check_tensors(self, update: Update) -> None:
        """Checks everything that can be checked before codes are multiplied by their scales."""
        if not update.tensors:
            raise Refused(Reason.WRONG_NAME, "the update holds no tensor.")
        if update.encoding in PACKED and len(update.tensors) > 1:
            raise Refused(Reason.WRONG_NAME, f"{update.encoding} codes are in one tensor.")
        names = self._names(update)
        for name in names:
            if name not in self.known:
                raise Refused(Reason.WRONG_NAME, f"the fleet knows no tensor {name[:80]!r}.")
        shapes = {name: self.known[name].shape for name in names}
        if update.encoding in PACKED:
            _check_packed(update, shapes)
        else:
            for name, tensor in update.tensors.items():
                _check_tensor(f"tensor {name!r}", tensor, update.encoding, shapes[name])
        if update.fingerprint != self._fingerprint_of(tuple(names)):
            raise Refused(
                Reason.WRONG_FINGERPRINT,
                "the update's fingerprint is not that of its tensors in this fleet.",
            )
        if update.encoding in PACKED:
            _check_codes(update, shapes)


def _check_packed(update: Update, shapes: Shapes) -> None:
    ((name, packed),) = update.tensors.items()
    if name not in (EVERYTHING, packed_name(shapes)):  # also finds repeated names
        raise Refused(
            Reason.WRONG_NAME, "the update's tensors are not in the order of their names."
        )
    size = packed_bytes(shapes, update.encoding)
    _check_tensor(f"the tensor of {update.encoding} codes", packed, "uint8", (size,))


def _check_tensor(what: str, tensor: Array, dtype: str, shape: tuple[int, ...]) -> None:
    if tensor.shape != shape:
        raise Refused(
            Reason.WRONG_SHAPE, f"{what} has shape {tensor.shape}, and in the fleet {shape}."
        )
    if tensor.dtype != dtype:
        raise Refused(Reason.WRONG_DTYPE, f"{what} is {tensor.dtype}, not {dtype}.")


def _check_codes(update: Update, shapes: Shapes) -> None:
    (packed,) = update.tensors.values()
    if name := bad_scale(packed, shapes, update.encoding):
        raise Refused(
            Reason.BAD_SCALE,
            f"tensor {name!r} has a scale that is NaN, not positive, or far too large.",
        )
    if name := bad_code(packed, shapes, update.encoding):
        raise Refused(
            Reason.BAD_CODE, f"tensor {name!r} holds a code that {update.encoding} lacks."
        )


def _reason(error: WireError) -> Reason:
    return Reason.OVERSIZED if isinstance(error, Oversized) else Reason.MALFORMED


def _check_sender(claimed: str, sender: str) -> None:
    try:
        check_name("device", sender)
    except NameRefused as error:
        raise Refused(Reason.FOREIGN, str(error)) from None
    if claimed != sender:
        raise Refused(Reason.FOREIGN, "the message names another device than its topic.")


def _check_values(update: Update) -> None:
    """One product is enough for all three: NaN and infinity stay what they are in it."""
    for name, squares in update.squares.items():
        if not squares <= LARGEST_NORM**2:
            raise Refused(
                Reason.NOT_FINITE,
                f"tensor {name!r} holds NaN, infinity, or numbers beyond all training.",
            )
