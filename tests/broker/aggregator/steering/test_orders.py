"""An aggregator stops when its operator says so, once, and for nobody else."""

from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from broker.aggregator.steering.orders import Orders
from broker.protocol.messages import Command, to_bytes
from broker.protocol.topics import Topics

TOPICS = Topics("orchard")
TOPIC = TOPICS.aggregator_command


def command(**changes: Any) -> Command:
    usual: dict[str, Any] = {"device": "aggregator", "what": "stop", "number": 5001}
    return Command(**usual | changes)


def test_it_obeys_what_was_said_since_it_started() -> None:
    orders = Orders(TOPICS, key=None, now=5.0)
    answer = orders.take(to_bytes(command()))
    assert answer is not None
    assert (answer.device, answer.number, answer.done) == ("aggregator", 5001, True)
    assert orders.take(to_bytes(command(number=5000))) is None, "said to the one before"
    assert orders.take(to_bytes(command(device="pi-1"))) is None
    assert orders.take(b"stop") is None
    other = orders.take(to_bytes(command(what="dance")))
    assert other is not None
    assert (other.done, other.text) == (False, "it cannot 'dance'")


@pytest.mark.parametrize("signed_for", ["", TOPICS.command("pi-1")])
def test_only_the_holder_of_the_key_commands(signed_for: str) -> None:
    key = Ed25519PrivateKey.generate()
    orders = Orders(TOPICS, key=key.public_key().public_bytes_raw(), now=0.0)
    forged = to_bytes(command(), topic=signed_for, signer=key if signed_for else None)
    assert orders.take(forged) is None
    assert orders.take(to_bytes(command(), topic=TOPIC, signer=key)) is not None
