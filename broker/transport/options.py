"""Options of the link to a broker, the same for the aggregator and for devices."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from broker.errors import TransportError
from broker.protocol.parts import SMALLEST
from broker.transport.address import Credentials, parse_address
from broker.transport.channel import PART_BYTES, Channel
from broker.transport.mqtt import MqttTransport
from broker.transport.mqtt_rules import PACKET_ROOM
from broker.transport.simulated_link import SimulatedLink
from broker.transport.transport import QueueLimits, Transport, Will

DEFAULT_BROKER = "mqtt://127.0.0.1:1883"
Shape = Callable[[Transport, QueueLimits], Transport]  # traffic shaping: a simulated link


def add_link_options(
    parser: argparse.ArgumentParser, *, usual_part_bytes: str = str(PART_BYTES)
) -> None:
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
        "--allow-readable-keys",
        action="store_true",
        help="use passwords, keys and packs that other users of this machine can read",
    )
    add(
        "--part-bytes",
        type=int,
        metavar="N",
        help=f"larger messages are sent in parts (default {usual_part_bytes})",
    )


def add_simulation_options(parser: argparse.ArgumentParser) -> None:
    link = parser.add_argument_group("simulated link", "to study round time on a fast network")
    add = link.add_argument
    add("--simulate-link", action="store_true", help="be as slow as the profile's bandwidth_kbps")
    add("--latency-ms", type=latency, default=0.0, metavar="MS", help="each way (default 0)")
    add("--loss", type=loss, default=0.0, metavar="P", help="part of packets, as 0.1 (default 0)")


def latency(text: str) -> float:
    number = float(text)
    if not 0 <= number <= 60_000:
        raise argparse.ArgumentTypeError("must be from 0 to 60000")
    return number


def loss(text: str) -> float:
    number = float(text)
    if not 0 <= number < 1:
        raise argparse.ArgumentTypeError("must be at least 0 and below 1")
    return number


def simulated_link(args: argparse.Namespace, *, bandwidth_kbps: float, seed: str) -> Shape | None:
    """Returns what simulates the link that the options describe; None if they ask for none."""
    if not args.simulate_link:
        return None
    return lambda transport, limits: SimulatedLink(
        transport,
        bandwidth_kbps=bandwidth_kbps,
        latency_seconds=args.latency_ms / 1000,
        loss=args.loss,
        seed=seed,
        limits=limits,
    )


def part_bytes_within(packet_limit_kib: int) -> int:
    """Returns the largest size of a part whose packet stays within the limit."""
    return 1024 * packet_limit_kib - PACKET_ROOM


def credentials_in(args: argparse.Namespace) -> Credentials:
    """Returns what the options say of who we are at the broker."""
    return Credentials(
        user=args.user,
        password_file=args.password_file,
        ca_file=args.ca_file,
        certificate_file=args.certificate_file,
        key_file=args.key_file,
        allow_readable=args.allow_readable_keys,
    )


def open_channel(
    args: argparse.Namespace,
    *,
    client_id: str,
    subscriptions: Sequence[str],
    will: Will | None,
    limit: int,
    inbox_bytes: int,
    part_bytes: int = PART_BYTES,
    shape: Shape | None = None,
) -> Channel:
    """Returns a channel as the options describe it; it connects in the background, again and again.

    `part_bytes` is the default of the option; `shape` may put a simulated link in between.
    """
    if args.part_bytes is not None and args.part_bytes < SMALLEST:
        raise TransportError(f"--part-bytes must be at least {SMALLEST}.")
    limits = QueueLimits(inbox_bytes=inbox_bytes, outbox_bytes=max(inbox_bytes, 2 * limit))
    transport: Transport = MqttTransport(
        parse_address(args.broker),
        client_id=client_id,
        subscriptions=subscriptions,
        will=will,
        credentials=credentials_in(args),
        limits=limits,
    )
    return Channel(
        transport if shape is None else shape(transport, limits),
        limit=limit,
        part_bytes=args.part_bytes or part_bytes,
        held_limit=inbox_bytes,
    )
