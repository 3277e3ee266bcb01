"""amqtt's private parts that we override or call are still there, and still called.

If a test fails after an update of amqtt, compare `broker/brokers/amqtt_broker.py` with the new
source of `amqtt.broker.Broker`. What the corrections achieve is tested in `test_embedded.py`.
"""

import inspect

import pytest
from amqtt.adapters import StreamReaderAdapter  # type: ignore[import-untyped]
from amqtt.broker import Broker  # type: ignore[import-untyped]
from amqtt.session import Session  # type: ignore[import-untyped]

from broker.brokers.amqtt_broker import CorrectedBroker
from broker.brokers.embedded import EmbeddedBroker

OVERRIDDEN = {
    "stream_connected": ["self", "reader", "writer", "listener_name"],
    "_publish_retained_messages_for_subscription": ["self", "subscription", "session"],
    "_publish_session_retained_messages": ["self", "session"],
    "_handle_disconnect": ["self", "client_session", "handler", "disconnect_waiter"],
}
CALLED = {
    "_client_connected": ["self", "listener_name", "reader", "writer"],
    "_get_handler": ["self", "session"],
}


@pytest.mark.parametrize("name", [*OVERRIDDEN, *CALLED])
def test_amqtt_has_the_methods_that_are_used(name: str) -> None:
    method = getattr(Broker, name, None)
    assert method is not None, f"amqtt's broker has no {name} any more"
    assert list(inspect.signature(method).parameters) == (OVERRIDDEN | CALLED)[name]


@pytest.mark.parametrize("name", OVERRIDDEN)
def test_amqtt_still_calls_what_is_overridden(name: str) -> None:
    assert name in vars(CorrectedBroker), f"{name} is not overridden"
    source = inspect.getsource(Broker)
    assert f"self.{name}" in source, f"amqtt's broker does not use {name} any more"


def test_amqtt_keeps_its_servers_and_the_transitions_of_a_session() -> None:
    with EmbeddedBroker() as running:
        assert running.port > 0, "the port is found through amqtt's _servers"
    assert {"connect", "is_connected"} <= set(dir(Session().transitions))
    assert "read" in vars(StreamReaderAdapter)
