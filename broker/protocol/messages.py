"""The messages of a fleet: one frozen dataclass for each kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import cached_property
from typing import Any, ClassVar, TypeVar, get_args, get_type_hints

from broker.errors import WireError
from broker.protocol.norms import squared_norms
from broker.protocol.signatures import FIELD, Signer, check_signature, signature
from broker.protocol.slice import (
    SharedTensor,
    Slice,
    Tensors,
    short_fingerprint,
    whole_fingerprint,
)
from broker.protocol.wire import Array, Envelope, decode, encode
from profiles.errors import StemshareError

RECEIVED = "received"  # in a birth, of a tensor that the device takes and does not send
SMALL = 2**20  # bytes; the largest message without tensors


class Reason(StrEnum):
    """Why a birth or an update was refused; each is counted."""

    OVERSIZED = "oversized"
    MALFORMED = "malformed"
    FOREIGN = "foreign"  # from another device than the topic says, or for another run
    WRONG_NAME = "wrong-name"
    WRONG_SHAPE = "wrong-shape"
    WRONG_DTYPE = "wrong-dtype"
    WRONG_FINGERPRINT = "wrong-fingerprint"
    WRONG_EXCHANGE = "wrong-exchange"
    WRONG_ENCODING = "wrong-encoding"
    BAD_SCALE = "bad-scale"  # zero, negative, NaN, or far too large
    BAD_CODE = "bad-code"  # one that quantisation never produces
    NOT_FINITE = "not-finite"
    BAD_SAMPLES = "bad-samples"
    LATE = "late"  # its round was merged without it
    EARLY = "early"  # for a round that has not begun
    REPLAYED = "replayed"  # older than what this device sent last
    SECOND = "second"  # this device's update for the round is already in
    FULL = "full"  # the fleet has its largest number of devices
    NOT_A_MEMBER = "not-a-member"  # the fleet has a list, and the device is not in it
    SUPERSEDED = "superseded"  # a newer program has joined under the same name
    FINISHED = "finished"


class Refused(StemshareError):
    """A birth or an update that changes nothing; the text is one sentence."""

    def __init__(self, reason: Reason, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


@dataclass(frozen=True, eq=False, kw_only=True)
class Update:
    """What a device learnt in one round: Δθ_shared, or dθ_shared, as `exchange` says.

    On the wire its fields have short names and the fingerprint is in base64, because they can be
    larger than the codes of a small slice.
    """

    KIND: ClassVar[str] = "update"
    WIRE_NAMES: ClassVar[Mapping[str, str]] = {
        "device": "d",
        "round": "r",
        "nonce": "n",
        "samples": "s",
        "exchange": "x",
        "fingerprint": "f",
        "encoding": "e",
    }
    device: str
    run: str
    round: int  # of the θ_shared it started from
    nonce: str  # (device, round, nonce) makes it idempotent
    samples: int  # |D_k|, the amount of local data
    exchange: str
    fingerprint: str  # of the device's slice
    encoding: str = "float32"  # of the tensors below, see `quantisation.py`
    tensors: Tensors = field(default_factory=dict)

    @cached_property
    def squares(self) -> dict[str, float]:
        """‖Δ‖² of each tensor, of an update in float32."""
        return squared_norms(self.tensors)


@dataclass(frozen=True, eq=False, kw_only=True)
class Shared:
    """θ_shared, float32 or float16, after `round` merges; `last`: no further round will come."""

    KIND: ClassVar[str] = "shared"
    run: str
    round: int
    fingerprint: str
    last: bool = False
    tensors: Tensors = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The aggregator's answer to a birth (`about` "join") or an update."""

    KIND: ClassVar[str] = "verdict"
    device: str
    about: str
    run: str
    accepted: bool
    round: int = -1
    nonce: str = ""
    reason: str = ""
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class DeviceState:
    """A device's birth, or its will: the device is gone."""

    KIND: ClassVar[str] = "device"
    LATER: ClassVar[frozenset[str]] = frozenset({"instance", "asks", "waiting"})
    device: str
    online: bool
    fingerprint: str = ""
    tensors_shared: Mapping[str, Any] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)  # profile, branch, runtime: for people
    instance: str = ""  # drawn when the program starts: tells two devices with one name apart
    asks: bool = False  # for θ_shared: the broker has not delivered the retained one
    waiting: str = ""  # why it does not train at the moment: no round waits for it

    @classmethod
    def birth(
        cls,
        device: str,
        shared: Slice,
        about: Mapping[str, Any],
        *,
        instance: str = "",
        sent: Slice | None = None,
    ) -> DeviceState:
        """Tensors outside `sent` are received: the device takes them, and does not send them."""
        names = {t.name for t in (shared if sent is None else sent).tensors}
        described = {
            t.name: {"shape": list(t.shape), "dtype": t.dtype, "fingerprint": t.fingerprint}
            | ({} if t.name in names else {RECEIVED: True})
            for t in shared.tensors
        }
        return cls(
            device=device,
            online=True,
            fingerprint=shared.fingerprint,
            tensors_shared=described,
            about=about,
            instance=instance,
        )

    @property
    def receives_only(self) -> bool:
        """Whether no update of the device will ever come; to be asked after `slice`."""
        return all(entry.get(RECEIVED) is True for entry in self.tensors_shared.values())

    def slice(self) -> Slice:
        """Returns the slice that the birth describes; raises `WireError` if it describes none."""
        return Slice.of(_shared_tensor(n, entry) for n, entry in self.tensors_shared.items())


@dataclass(frozen=True, kw_only=True)
class AggregatorState:
    """Who coordinates the fleet: "online", "offline" (also its will) or "finished"."""

    KIND: ClassVar[str] = "aggregator"
    LATER: ClassVar[frozenset[str]] = frozenset({"epoch", "instance", "round"})
    status: str
    run: str
    mode: str = ""
    exchange: str = ""
    merge: str = ""
    fingerprint: str = ""
    epoch: int = 0  # grows with every start: a newer aggregator fences the older one
    instance: str = ""  # drawn when the program starts
    round: int = 0  # of the newest θ_shared


@dataclass(frozen=True, kw_only=True)
class FleetReport:
    """What the aggregator has seen of its devices and rounds: for people, nobody acts upon it.

    Times are milliseconds of Unix time, by the aggregator's clock. `devices` and `rounds` are
    described in `broker/aggregator/records/report.py`, which alone writes them.
    """

    KIND: ClassVar[str] = "report"
    run: str
    round: int
    time_ms: int
    began_ms: int  # when the round that is open began
    deadline_ms: int  # of a round
    quorum: int
    last_round: int  # after which the fleet ends; 0: never
    devices: Mapping[str, Any] = field(default_factory=dict)
    rounds: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Command:
    """What the operator asks a device to do: "pause", "resume" or "remove"."""

    KIND: ClassVar[str] = "command"
    device: str
    what: str
    number: int  # Unix time in milliseconds: a device obeys only what is newer than the last one
    text: str = ""  # why, for people


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a device says to a command: done, or why not."""

    KIND: ClassVar[str] = "answer"
    device: str
    number: int  # of the command
    done: bool
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class Offer:
    """A pack that a device is to take; it asks for the parts, which the operator sends."""

    KIND: ClassVar[str] = "offer"
    device: str
    version: int  # of the pack
    digest: str  # sha256 of the pack, in hex
    bytes: int
    part_bytes: int  # of the pack in each part but the last
    within: int  # seconds, in which the device has to finish a round with it


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """How far a device is with an offer; the stages are in `firmware_sim/updating/updates.py`."""

    KIND: ClassVar[str] = "rollout"
    device: str
    version: int
    stage: str
    part: int = 0  # the next one that it wants
    text: str = ""  # why, for people


Message = (
    Update
    | Shared
    | Verdict
    | DeviceState
    | AggregatorState
    | FleetReport
    | Command
    | Answer
    | Offer
    | Rollout
)
M = TypeVar("M", bound=Message)


def to_bytes(message: Message, *, topic: str = "", signer: Signer | None = None) -> bytes:
    """Returns the message as it travels, signed for `topic` if there is a signer."""
    values = {f.name: getattr(message, f.name) for f in fields(message)}
    tensors: Mapping[str, Array] = values.pop("tensors", {})
    if isinstance(message, Update):
        values["fingerprint"] = short_fingerprint(message.fingerprint)
        values = {message.WIRE_NAMES.get(name, name): value for name, value in values.items()}
    if signer is not None:
        values[FIELD] = signature(signer, topic, message.KIND, values, tensors)
    return encode(message.KIND, values, tensors)


def from_bytes(
    kind: type[M], payload: bytes, *, limit: int = SMALL, topic: str = "", key: bytes | None = None
) -> M:
    """Returns the message; fields that this version does not know are ignored.

    Raises `WireError` if it is none, and `Unsigned` if there is a key, and its holder has not
    signed this message for `topic`.
    """
    envelope = decode(payload, limit=limit)
    if key is not None:
        check_signature(envelope, topic, key)
    if envelope.kind != kind.KIND:
        raise WireError(f"this is a message of kind {envelope.kind[:40]!r}, not {kind.KIND!r}.")
    values = _values(kind, envelope)
    if kind is Update:
        values["fingerprint"] = whole_fingerprint(values["fingerprint"])
    if "tensors" in {f.name for f in fields(kind)}:
        values["tensors"] = dict(envelope.tensors)
    elif envelope.tensors:
        raise WireError(f"a message of kind {kind.KIND!r} has no tensors.")
    return kind(**values)


def _values(kind: type[M], envelope: Envelope) -> dict[str, Any]:
    values = {}
    sent_as = Update.WIRE_NAMES if kind is Update else {}
    for name, wanted in _JSON_TYPES[kind].items():
        if (sent := sent_as.get(name, name)) not in envelope.fields:
            if name in getattr(kind, "LATER", ()):  # senders of an earlier version do not say it
                continue
            raise WireError(f"a message of kind {kind.KIND!r} must say its {name}.")
        value = envelope.fields[sent]
        if type(value) is not wanted:  # to Python, though not to JSON, true is an integer
            raise WireError(f"{name} of a message of kind {kind.KIND!r} has another type.")
        values[name] = value
    return values


def _shared_tensor(name: str, entry: Any) -> SharedTensor:
    match entry:
        # Limited in length, because the sentence that refuses a birth repeats them.
        case {"shape": list(shape), "dtype": str(dtype), "fingerprint": str(fingerprint)} if (
            len(name) <= 256
            and len(dtype) <= 16
            and len(shape) <= 8
            and all(type(n) is int and 0 <= n < 2**48 for n in shape)
        ):
            return SharedTensor(name, tuple(shape), dtype, fingerprint)
    raise WireError(f"tensor {name[:80]!r} of a birth is not described.")


def _json_types(kind: type[Message]) -> dict[str, type]:
    """Returns the JSON type of each field: string, integer, boolean, or otherwise an object."""
    hints = get_type_hints(kind)
    names = [f.name for f in fields(kind) if f.name != "tensors"]
    return {name: hints[name] if hints[name] in (str, int, bool) else dict for name in names}


_JSON_TYPES = {kind: _json_types(kind) for kind in get_args(Message)}
