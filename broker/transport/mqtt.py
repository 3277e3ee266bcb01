"""Packets over a real broker: MQTT 5, or MQTT 3.1.1 where the broker speaks nothing newer.

One thread owns the network and opens one `Link` after the other; publishers and readers exchange
packets with it through two bounded queues. The outbox alone decides the order: a packet is sent
only after every older one, also after an outage, so what is published on `Connected` is the newest
on its topic. What was not acknowledged is sent again as a new packet: with QoS 1 receivers must
accept repetitions anyway.
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
from broker.transport.address import Address, Credentials, check_private, login
from broker.transport.mqtt_link import GOODBYE_S, Link, Version
from broker.transport.mqtt_rules import check_filters, check_topic
from broker.transport.paho_client import Login
from broker.transport.queues import Inbox, Outbox
from broker.transport.transport import Disconnected, Event, QueueLimits, Will

FIRST_DELAY_S = 0.2
LONGEST_DELAY_S = 15.0
STABLE_S = 30.0  # after a link that lasted longer, the delays start from the first one again
ANSWER_S = 5.0  # for the first answer of a broker; some do not answer MQTT 5 at all
_JITTER = random.Random()  # its own: seeds of an application and of its tests stay theirs


class MqttTransport:
    """A client of a broker with a persistent session; connects again after every lost link."""

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
        keep_session: bool = True,
    ) -> None:
        """`version` is 4 for MQTT 3.1.1 or 5 for MQTT 5; None tries which one the broker speaks.

        Without `keep_session` the broker forgets the client as soon as its link is lost.
        """
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
            keep_session,
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
        # The thread may be in a connect or a name lookup; it then ends by itself later.
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
        # A full socket: the thread is awake already. A closed one: the thread has ended.
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
        reported: Disconnected | None = None
        while not self._closing.is_set():
            began = time.monotonic()
            link = self._link = Link(self._login, version, self._inbox, self._outbox)
            link.run(self._wake_reader, self._closing.is_set, max(ANSWER_S, 2 * delay))
            self._link, self._earlier_bytes = None, self._earlier_bytes + link.sent_bytes
            if self._closing.is_set() or link.ended is None:
                return
            if link.up:
                spoken, reported = version, None
            if self._another_version_may_help(link, spoken) and not both_tried:
                version, both_tried = 4 if version == 5 else 5, True
                continue
            both_tried = False
            if link.ended != reported:
                reported = link.ended
                self._inbox.put(reported)
            if link.ended.final:
                return
            if time.monotonic() - began > STABLE_S and link.up:
                delay = FIRST_DELAY_S
            # A random part of it, so that not all devices connect at the same moment.
            self._closing.wait(delay * _JITTER.uniform(0.5, 1.0))
            delay = min(2 * delay, LONGEST_DELAY_S)

    def _another_version_may_help(self, link: Link, spoken: Version | None) -> bool:
        """Returns whether the broker may speak only the other version of MQTT.

        A broker may refuse a version, close the connection, or not answer at all. One that spoke
        this version before is probably restarting, unless it refuses the version.
        """
        if self._forced is not None or not link.opened or link.answered:
            return False
        if link.ended is not None and link.ended.final:
            return False
        return link.wrong_version or spoken is None


def tls_context(credentials: Credentials) -> ssl.SSLContext:
    """Returns a context for TLS 1.2 or newer that checks the broker's certificate and host name."""
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
        check_private(key, credentials)
        try:
            # With an empty password OpenSSL does not ask for one at the terminal.
            context.load_cert_chain(certificate, key, password="")
        except OSError as error:
            what = "they do not fit" if isinstance(error, ssl.SSLError) else error.strerror
            raise TransportError(
                f"the certificate {certificate} and the key {key} cannot be used: {what}."
            ) from error
    return context
