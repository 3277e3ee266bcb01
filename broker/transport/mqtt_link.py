"""One connection to a broker, from opening the socket to DISCONNECT, and why it ended.

Only one thread uses the paho client in here. It is driven through paho's interface for external
event loops, because paho's own loop hides why a connection failed, sends again in another order,
and may write to the socket from two threads.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any, Literal, cast

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from broker.transport.link_failures import (
    NOT_AUTHORISED,
    TAKEN_OVER,
    WRONG_VERSION,
    explain,
    explain_refusal,
)
from broker.transport.mqtt_rules import matches
from broker.transport.paho_client import Login, PahoClient
from broker.transport.queues import Inbox, Outbox, Outgoing
from broker.transport.transport import Connected, Disconnected, Packet

Version = Literal[4, 5]  # the protocol levels of MQTT 3.1.1 and MQTT 5
GOODBYE_S = 5.0
KEEPALIVE_S = 60
SESSION_S = 86_400  # for which a broker keeps the session of a client that is away (MQTT 5)
WINDOW = 20  # unacknowledged packets, if the broker does not ask for fewer


class Link:
    """A connection and its state."""

    def __init__(self, login: Login, version: Version, inbox: Inbox, outbox: Outbox) -> None:
        self._login = login
        self._version = version
        self._inbox = inbox
        self._outbox = outbox
        self._paho = self._make_client()
        self._on_the_wire: dict[int, Outgoing] = {}  # by paho's message id
        self._window = WINDOW
        self._max_packet_bytes: int | None = None
        self._leaving = False
        self.ended: Disconnected | None = None
        self.opened = False  # the socket was opened
        self.answered = False  # the broker answered, in a version that both speak
        self.wrong_version = False  # the broker refused the version
        self.up = False
        self.sent_bytes = 0

    def run(self, wake: socket.socket, closing: Callable[[], bool], patience: float) -> None:
        """Runs until the link is lost, for the reason in `ended`, or until `closing()`.

        `wake` becomes readable when there is something to send; `patience` is the number of
        seconds in which the broker has to answer the first packet.
        """
        address = self._login.address
        properties = None
        if self._version == 5:
            properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            properties.SessionExpiryInterval = SESSION_S if self._login.keep_session else 0
        try:
            # A member's is not clean: the broker has to keep its session, also over restarts.
            # (In 3.1.1 the client was created so, and this value is paho's "not set".)
            clean = paho.MQTT_CLEAN_START_FIRST_ONLY
            if self._version == 5:
                clean = not self._login.keep_session
            self._paho.connect(
                address.host, address.port, KEEPALIVE_S, clean_start=clean, properties=properties
            )
        except OSError as error:
            hint = ", as a port does that knows no mqtts://" if address.tls else ""
            self.ended = explain(error, address, hint)
            return
        self.opened = True
        deadline = time.monotonic() + patience
        with selectors.DefaultSelector() as selector:
            selector.register(wake, selectors.EVENT_READ)
            selector.register(cast(socket.socket, self._paho.socket()), selectors.EVENT_READ)
            while self.ended is None and not closing():
                self._send()
                self._serve(selector, wake)
                if not self.answered and time.monotonic() > deadline:
                    self.ended = Disconnected(f"{address} does not answer.", final=False)
        self._disconnect()
        self._outbox.link_lost()

    def _make_client(self) -> PahoClient:
        login = self._login
        client = PahoClient(
            CallbackAPIVersion.VERSION2,
            client_id=login.client_id,
            clean_session=None if self._version == 5 else not login.keep_session,
            protocol=paho.MQTTv5 if self._version == 5 else paho.MQTTv311,
            reconnect_on_failure=False,
        )
        client.login = login
        client.max_inflight_messages_set(0)  # no limit: the outbox has one
        if login.user is not None:
            client.username_pw_set(login.user, login.password)
        if login.tls is not None:
            client.tls_set_context(login.tls)
        if login.will is not None:
            client.will_set(login.will.topic, login.will.payload, qos=1, retain=True)
        client.on_connect = self._on_connect
        client.on_subscribe = self._on_subscribe
        client.on_message = self._on_message
        client.on_publish = self._on_publish
        client.on_disconnect = self._on_disconnect
        client.on_socket_close = self._on_socket_close
        # With this set, paho writes only in loop_write.
        client.on_socket_register_write = lambda *_: None
        return client

    # The loop.

    def _send(self) -> None:
        while self.up and (item := self._outbox.take(self._window, self._max_packet_bytes)):
            sent = self._paho.publish(item.topic, item.payload, qos=1, retain=item.retain)
            self._on_the_wire[sent.mid] = item
            self.sent_bytes += len(item.payload)

    def _serve(self, selector: selectors.BaseSelector, wake: socket.socket) -> None:
        """Waits for the socket or the application, at most a second, then reads and writes."""
        client, sock = self._paho, cast(socket.socket | None, self._paho.socket())
        if sock is None:
            self._lost()
            return
        wanted = selectors.EVENT_WRITE if client.want_write() else 0
        selector.modify(sock, selectors.EVENT_READ | wanted)
        ready = {key.fileobj: events for key, events in selector.select(1.0)}
        if wake in ready:
            with contextlib.suppress(BlockingIOError):
                wake.recv(4096)
        events = ready.get(sock, 0)
        if events & selectors.EVENT_READ:
            client.loop_read()
            # TLS reads whole records: the rest of a record does not make the socket readable.
            while client.socket() and isinstance(sock, ssl.SSLSocket) and sock.pending():
                client.loop_read()
        if events & selectors.EVENT_WRITE:
            client.loop_write()
        client.loop_misc()

    def _disconnect(self) -> None:
        client, sock = self._paho, cast(socket.socket | None, self._paho.socket())
        if sock is None:
            return
        self._leaving = True
        client.disconnect()
        deadline = time.monotonic() + (GOODBYE_S if self.answered else 0.1)
        while client.socket() is not None and time.monotonic() < deadline:
            with selectors.DefaultSelector() as selector:
                selector.register(sock, selectors.EVENT_WRITE)
                selector.select(0.1)
            client.loop_write()
        sock.close()

    def _lost(self) -> None:
        if self.ended is None:
            address = self._login.address
            plain = not self.answered and not address.tls
            hint = ", as a port does that wants mqtts://" if plain else ""
            self.ended = explain(self._paho.failure, address, hint)

    # Called by paho, in the thread that runs the loop.

    def _on_connect(
        self, client: paho.Client, _u: Any, _f: Any, code: ReasonCode, properties: Properties | None
    ) -> None:
        self.wrong_version = code.value == WRONG_VERSION
        self.answered = not self.wrong_version
        if code.is_failure:
            self.ended = explain_refusal(code, self._login.address, self._login.client_id)
            return
        self._window = min(WINDOW, getattr(properties, "ReceiveMaximum", WINDOW))
        self._max_packet_bytes = getattr(properties, "MaximumPacketSize", None)
        filters = self._login.subscriptions
        if not filters:
            self._subscriptions_confirmed()
        elif self._version == 5:
            client.subscribe([(name, SubscribeOptions(qos=1)) for name in filters])
        else:
            client.subscribe([(name, 1) for name in filters])

    def _on_subscribe(
        self, _c: paho.Client, _u: Any, _mid: int, codes: list[ReasonCode], _p: Any
    ) -> None:
        for name, code in zip(self._login.subscriptions, codes, strict=False):
            if code.is_failure:
                reason = f"{self._login.address} refuses the subscription to {name!r}"
                self.ended = Disconnected(f"{reason}: {code.getName()}.", final=True)
                return
        self._subscriptions_confirmed()

    def _subscriptions_confirmed(self) -> None:
        self.up = True
        self._inbox.put(Connected(self._max_packet_bytes))

    def _on_message(self, _c: paho.Client, _u: Any, message: paho.MQTTMessage) -> None:
        try:
            topic = message.topic
        except UnicodeDecodeError:
            return
        # The broker may still have a subscription of an earlier version of this client.
        if any(matches(name, topic) for name in self._login.subscriptions):
            self._inbox.put(Packet(topic, bytes(message.payload), message.retain))

    def _on_publish(self, _c: paho.Client, _u: Any, mid: int, code: ReasonCode, _p: Any) -> None:
        item = self._on_the_wire.pop(mid)
        self._outbox.acknowledge(item, refused=code.is_failure)
        if code.value == NOT_AUTHORISED and self.ended is None:
            reason = f"{self._login.address} does not let this user publish on {item.topic!r}."
            self.ended = Disconnected(reason, final=True)

    def _on_disconnect(
        self, _c: paho.Client, _u: Any, flags: Any, code: ReasonCode, _p: Any
    ) -> None:
        if flags.is_disconnect_packet_from_server and self.ended is None:
            address = self._login.address
            if code.value == TAKEN_OVER:
                who = f"another client with the id {self._login.client_id!r}"
                self.ended = Disconnected(f"{who} connected to {address}.", final=True)
            else:
                reason = f"{address} ended the connection: {code.getName()}."
                self.ended = Disconnected(reason, final=code.value == NOT_AUTHORISED)

    def _on_socket_close(self, _c: paho.Client, _u: Any, sock: Any) -> None:
        """Reads until the broker closes the connection too.

        Closing a socket with unread data resets the connection; the broker might then never read
        the DISCONNECT and would publish the will.
        """
        if self._leaving and self.answered:
            with contextlib.suppress(OSError, ValueError):
                sock.settimeout(1.0)
                sock.shutdown(socket.SHUT_WR)
                deadline = time.monotonic() + 1.0
                while sock.recv(65_536) and time.monotonic() < deadline:
                    pass
