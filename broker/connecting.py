"""The options that say how to reach a broker, the same for the aggregator and for devices."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from broker.channel import PART_BYTES, Channel
from broker.mqtt import MqttTransport
from broker.parts import SMALLEST
from broker.transport import Credentials, Limits, TransportError, Will, parse_address

DEFAULT_BROKER = "mqtt://127.0.0.1:1883"


def add_link_options(parser: argparse.ArgumentParser) -> None:
    link = parser.add_argument_group("link to the broker")
    add = link.add_argument
    add(
        "--broker",
        default=DEFAULT_BROKER,
        metavar="URL",
        help="mqtt://HOST:PORT, or mqtts:// with TLS (default %(default)s)",
    )
    add("--user", help="user name at the broker")
    add("--password-file", type=Path, metavar="FILE", help="its first line is the password")
    add(
        "--ca-file",
        type=Path,
        metavar="FILE",
        help="authority that signed the broker's certificate",
    )
    add("--certificate-file", type=Path, metavar="FILE", help="our own certificate")
    add("--key-file", type=Path, metavar="FILE", help="its private key")
    add(
        "--part-bytes",
        type=int,
        default=PART_BYTES,
        metavar="N",
        help="larger messages are sent in parts (default %(default)s)",
    )


def open_channel(
    args: argparse.Namespace,
    *,
    client_id: str,
    subscriptions: Sequence[str],
    will: Will,
    limit: int,
    inbox_bytes: int,
) -> Channel:
    """A channel as the options say; it connects in the background and keeps trying."""
    if args.part_bytes < SMALLEST:
        raise TransportError(f"--part-bytes must be at least {SMALLEST}.")
    transport = MqttTransport(
        parse_address(args.broker),
        client_id=client_id,
        subscriptions=subscriptions,
        will=will,
        credentials=Credentials(
            user=args.user,
            password_file=args.password_file,
            ca_file=args.ca_file,
            certificate_file=args.certificate_file,
            key_file=args.key_file,
        ),
        limits=Limits(inbox_bytes=inbox_bytes, outbox_bytes=max(inbox_bytes, 2 * limit)),
    )
    return Channel(transport, limit=limit, part_bytes=args.part_bytes, held_limit=inbox_bytes)
