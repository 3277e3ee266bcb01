"""Packets over a real broker: MQTT 5, or MQTT 3.1.1 where the broker speaks nothing newer.

One thread owns the network and makes one `Link` after the other, for ever; publishers and readers
meet it at two bounded boxes. The outbox alone decides the order: a packet goes out only after
every older one, also after an outage, so what is published on `Connected` is the newest on its
topic. What was not acknowledged is sent again as a new packet: with QoS 1 a receiver must bear
repetitions anyway.
"""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
import threading
import time
from collections.abc import Sequence

from broker.errors import TransportError
from broker.transport.address import Address, Credentials, login
from broker.transport.mqtt_link import GOODBYE_S, Link, Version
from broker.transport.mqtt_rules import check_filters, check_topic
from broker.transport.paho_client import Login
from broker.transport.queues import Inbox, Outbox
from broker.transport.transport import Disconnected, Event, QueueLimits, Will

FIRST_DELAY_S = 0.2
LONGEST_DELAY_S = 15.0
STABLE_S = 30.0  # a link that lived so long starts the delays from the first again
ANSWER_S = 5.0  # what a broker may take to answer at first; some ignore MQTT 5 in silence


class MqttTransport:
    """A client of a broker with a session that outlives it; connects, and keeps connecting."""

    def __init__(
        self,
        address: Address,
        *,
        client_id: str,
        subscriptions: Sequence[str] = (),
        will: Will | None = None,
        credentials: Credentials | None = None,
        limits: QueueLimits | None = None,
        version: Version | None = None,
    ) -> None:
        """`version` forces MQTT 3.1.1 (4) or MQTT 5 (5); None finds out what the broker speaks."""
        credentials, limits = credentials or Credentials(), limits or QueueLimits()
        if not client_id:
            raise TransportError("a client of the broker needs an id that stays the same.")
        if will is not None:
            check_topic(will.topic)
        tls_files = credentials.ca_file, credentials.certificate_file, credentials.key_file
        if not address.tls and (file := next(filter(None, tls_files), None)):
            raise TransportError(f"{file} is of no use without mqtts:// in the broker's address.")
        user, password = login(address, credentials)
        self._login = Login(
            address,
            client_id,
            check_filters(subscriptions),
            will,
            user,
            password,
            tls_context(credentials) if address.tls else None,
        )
        self._forced = version
        self._inbox = Inbox(limits)
        self._outbox = Outbox(limits)
        self._link: Link | None = None
        self._earlier_bytes = 0  # sent over links that ended
        self._closing = threading.Event()
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)
        self._thread = threading.Thread(target=self._run, name=f"mqtt {client_id}", daemon=True)
        self._thread.start()

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        check_topic(topic)
        self._outbox.add(topic, payload, retain=retain)
        self._wake()

    def receive(self, timeout: float) -> Event | None:
        return self._inbox.get(timeout)

    def flush(self, timeout: float) -> bool:
        return self._outbox.flush(timeout)

    def close(self) -> None:
        self._closing.set()
        self._wake()
        # The thread may be inside a connect or a name lookup; it then ends by itself, later.
        self._thread.join(GOODBYE_S + 2.0)

    @property
    def sent_bytes(self) -> int:
        link = self._link
        return self._earlier_bytes + (link.sent_bytes if link else 0)

    @property
    def received_bytes(self) -> int:
        return self._inbox.received_bytes

    @property
    def dropped(self) -> int:
        return self._inbox.dropped + self._outbox.dropped

    def _wake(self) -> None:
        # Full: it is awake already. Closed: there is nobody to wake.
        with contextlib.suppress(OSError):
            self._wake_writer.send(b"\0")

    def _run(self) -> None:
        try:
            self._connect_for_ever()
        except BaseException:
            self._inbox.put(Disconnected("the transport failed inside.", final=True))
            raise
        finally:
            self._outbox.close()
            self._inbox.close()
            self._wake_reader.close()
            self._wake_writer.close()

    def _connect_for_ever(self) -> None:
        version: Version = self._forced or 5
        spoken: Version | None = None  # the version of the last link that was up
        both_tried = False
        delay = FIRST_DELAY_S
        told: Disconnected | None = None
        while not self._closing.is_set():
            began = time.monotonic()
            link = self._link = Link(self._login, version, self._inbox, self._outbox)
            link.run(self._wake_reader, self._closing.is_set, max(ANSWER_S, 2 * delay))
            self._link, self._earlier_bytes = None, self._earlier_bytes + link.sent_bytes
            if self._closing.is_set() or link.ended is None:
                return
            if link.up:
                spoken, told = version, None
            if self._another_version_may_help(link, spoken) and not both_tried:
                version, both_tried = 4 if version == 5 else 5, True
                continue
            both_tried = False
            if link.ended != told:
                told = link.ended
                self._inbox.put(told)
            if link.ended.final:
                return
            if time.monotonic() - began > STABLE_S and link.up:
                delay = FIRST_DELAY_S
            # Not all devices at the same moment after the broker was away.
            self._closing.wait(delay * random.uniform(0.5, 1.0))
            delay = min(2 * delay, LONGEST_DELAY_S)

    def _another_version_may_help(self, link: Link, spoken: Version | None) -> bool:
        """A broker may say that it does not know a version, or hang up on it, or keep silent.

        One that spoke this version before is only restarting, unless it says so itself.
        """
        if self._forced is not None or not link.opened or link.answered:
            return False
        if link.ended is not None and link.ended.final:
            return False
        return link.wrong_version or spoken is None


def tls_context(credentials: Credentials) -> ssl.SSLContext:
    """TLS 1.2 or newer, with the broker's certificate and host name checked."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    authority, certificate, key = (
        credentials.ca_file,
        credentials.certificate_file,
        credentials.key_file,
    )
    try:
        if authority is None:
            context.load_default_certs()
        else:
            context.load_verify_locations(authority)
    except OSError as error:  # ssl.SSLError is one
        what = "is no certificate" if isinstance(error, ssl.SSLError) else error.strerror
        raise TransportError(f"the CA file {authority} cannot be used: {what}.") from error
    if (certificate is None) != (key is None):
        raise TransportError("a client's certificate and its key belong together: give both files.")
    if certificate is not None and key is not None:
        try:
            # The empty password keeps OpenSSL from asking for one at a terminal.
            context.load_cert_chain(certificate, key, password="")
        except OSError as error:
            what = "they do not fit" if isinstance(error, ssl.SSLError) else error.strerror
            raise TransportError(
                f"the certificate {certificate} and the key {key} cannot be used: {what}."
            ) from error
    return context
