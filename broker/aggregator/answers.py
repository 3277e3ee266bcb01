"""What the aggregator answers to a birth or an update, once everything before it is durable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeVar

from broker.errors import WireError
from broker.protocol.messages import DeviceState, Refused, Update, Verdict, from_bytes

ABOUT_DEVICE = ("profile", "branch", "runtime")  # fields of a birth that are logged
LONGEST_LOGGED = 80  # characters of a text from a device
LONGEST_NONCE = 64  # characters that a verdict repeats; devices send no longer ones
M = TypeVar("M", Update, DeviceState)


@dataclass(frozen=True)
class Answer:
    """A verdict, whether its device may also get a θ_shared of its own, and whether it asked."""

    verdict: Verdict
    reply: bool
    asked: bool = False


def accepted(message: Update | DeviceState, *, run: str, round: int) -> Answer:
    """Returns the answer to a birth or an update that was accepted in this round of the run."""
    about: Literal["join", "update"] = "update" if isinstance(message, Update) else "join"
    asked = isinstance(message, DeviceState) and message.asks
    return Answer(_verdict(message.device, about, message, run, round), reply=True, asked=asked)


def refused(
    device: str,
    about: Literal["join", "update"],
    refusal: Refused,
    message: Update | DeviceState | None,
    *,
    run: str,
    round: int,
) -> Answer:
    """Returns the answer to a refused message; `message` is None if it cannot be read."""
    return Answer(_verdict(device, about, message, run, round, refusal), reply=False)


def readable(kind: type[M], payload: bytes, limit: int) -> M | None:
    """Returns a refused message, so that its verdict can name it; None if it cannot be read."""
    try:
        return from_bytes(kind, payload, limit=limit)
    except WireError:
        return None


def logged(birth: DeviceState) -> dict[str, str]:
    """Returns the texts in which a birth describes its device, shortened for the log."""
    if birth.waiting:
        return {"reason": birth.waiting[:LONGEST_LOGGED]}
    found = ((key, birth.about.get(key)) for key in ABOUT_DEVICE)
    return {k: v[:LONGEST_LOGGED] for k, v in found if isinstance(v, str)}


def _verdict(
    device: str,
    about: str,
    message: Update | DeviceState | None,
    run: str,
    round: int,
    refusal: Refused | None = None,
) -> Verdict:
    """A verdict names an update by its nonce, and a birth by the fingerprint of its slice."""
    nonce = ""
    if isinstance(message, Update):
        nonce, round = message.nonce, message.round
    elif isinstance(message, DeviceState):
        nonce = message.fingerprint
    return Verdict(
        device=device,
        about=about,
        run=run,
        accepted=refusal is None,
        round=round,
        nonce=nonce[:LONGEST_NONCE],
        reason=str(refusal.reason) if refusal else "",
        text=str(refusal) if refusal else "",
    )
