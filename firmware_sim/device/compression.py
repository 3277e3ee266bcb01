"""Smaller updates: quantised, with error feedback.

    e ← e + Δ        what was learnt, and the error of rounding so far
    send Q(e)
    e ← e - Q⁻¹(Q(e))

So the sum of what was sent differs from the sum of what was learnt by e alone, at most one step of
the last scale. e is in every checkpoint, since the device may be killed at any moment.

An update that is refused as late is lost, as it would be in float32; e stays as it is. In another
run θ_shared is another, and what was learnt for the old one is no correction of it: e ← 0.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Any

import numpy as np

from broker.errors import NotQuantisable
from broker.protocol.messages import Update, to_bytes
from broker.protocol.quantisation import decode_tensors, encode_tensors
from broker.protocol.slice import Tensors
from broker.protocol.wire import Array
from firmware_sim.errors import Diverged
from firmware_sim.training.checkpoint import Residual


class Compression:
    """Encodes updates, and keeps the error of rounding in `residual`."""

    def __init__(self, encoding: str, residual: Residual) -> None:
        self.encoding = encoding
        self._residual = residual

    def enter(self, run: str) -> None:
        """Starts a run: a residual of another run is dropped."""
        if self._residual.run != run:
            self._residual.run, self._residual.tensors = run, {}

    def update(
        self, learnt: Tensors, *, device: str, round: int, everything: bool, **fields: Any
    ) -> bytes:
        """Returns a new update as it travels; `fields` are the others of the message."""
        return to_bytes(
            Update(
                device=device,
                round=round,
                nonce=secrets.token_hex(16),
                encoding=self.encoding,
                tensors=self.compress(learnt, device=device, round=round, everything=everything),
                **fields,
            )
        )

    def compress(
        self, learnt: Tensors, *, device: str, round: int, everything: bool
    ) -> dict[str, Array]:
        """Returns the encoded update; the same device, round and numbers give the same bytes.

        `everything` states that the fleet has no tensors but these.
        """
        kept = self._residual.tensors
        wanted = {name: x + kept[name] if name in kept else x for name, x in learnt.items()}
        try:
            rng = _rng(device, round)
            sent = encode_tensors(wanted, self.encoding, rng, everything=everything)
        except NotQuantisable as error:
            found = str(error).removesuffix(".")
            raise Diverged(f"in round {round} {found}; lower the learning rate.") from None
        if self.encoding == "float32":
            self._residual.tensors = {}
            return sent
        shapes = {name: x.shape for name, x in wanted.items()}
        received = decode_tensors(sent, self.encoding, shapes)
        self._residual.tensors = {name: x - received[name] for name, x in wanted.items()}
        return sent


def _rng(device: str, round: int) -> np.random.Generator:
    """Random numbers of the device's own: equal rounding on all devices would add up in a mean."""
    seed = hashlib.sha256(f"{device}/{round}".encode()).digest()
    return np.random.default_rng(int.from_bytes(seed[:16], "little"))
