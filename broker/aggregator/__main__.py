"""The aggregator program: `python -m broker.aggregator`."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
from collections.abc import Sequence

from broker.aggregator.beside import dashboard_beside
from broker.aggregator.build import build_aggregator
from broker.aggregator.options import arguments, require, spec_of
from broker.aggregator.records.scraped import serve_metrics
from broker.aggregator.storage.check import check_state
from broker.aggregator.storage.salvage import salvage_state
from broker.log import Log
from broker.systemd import Watchdog
from broker.transport.address import parse_address
from broker.transport.channel import Channel
from broker.transport.options import open_channel
from broker.transport.transport import Will
from profiles.errors import FAILED, StemshareError
from profiles.text import printable

LINGER_SECONDS = 30.0  # with an embedded broker, which ends with this process


def main(argv: Sequence[str] | None = None) -> None:
    parser = arguments()
    args = parser.parse_args(argv)
    try:
        if args.check or args.salvage:
            require(parser, args, "state")
            sys.exit(look_after(args))
        require(parser, args, "slice", "fleet", "state")
        with contextlib.ExitStack() as stack:
            finished = serve(args, stack)
    except StemshareError as error:
        sys.stderr.write(f"{error.report}\n")
        sys.exit(error.exit_code)
    except KeyboardInterrupt:  # before there was anything to stop
        finished = False
    if not finished:
        sys.stderr.write(f"stopped; {args.state} keeps everything, the same command goes on\n")


def look_after(args: argparse.Namespace) -> int:
    """Checks or salvages the state folder; returns the exit code."""
    if args.salvage:
        print("\n".join(map(printable, salvage_state(args.state))))
        return 0
    found = check_state(args.state)
    print("\n".join(map(printable, found.lines())))  # devices are called as they call themselves
    return 0 if found.is_whole else FAILED


def serve(args: argparse.Namespace, stack: contextlib.ExitStack) -> bool:
    """Runs to the last round, or to SIGINT or SIGTERM; returns whether to the last round."""
    address = parse_address(args.broker)
    spec = spec_of(args)

    def connect(
        *, client_id: str, subscriptions: Sequence[str], will: Will | None, limit: int
    ) -> Channel:
        if args.embedded:
            # Imported only here: that takes a sixth of the time to start.
            from broker.brokers.embedded import EmbeddedBroker

            stack.enter_context(EmbeddedBroker(host=address.host, port=address.port))
        return open_channel(
            args,
            client_id=client_id,
            subscriptions=subscriptions,
            will=will,
            limit=limit,
            inbox_bytes=args.inbox_mib * 2**20,
        )

    watchdog = Watchdog()
    aggregator = build_aggregator(spec, connect, stack, log=Log(), alive=watchdog.alive)
    if args.metrics_port is not None:
        server = serve_metrics(aggregator.record.scraped, args.metrics_port, args.metrics_host)
        stack.callback(server.shutdown)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: aggregator.stop())
    if args.dashboard is not None:
        stack.enter_context(dashboard_beside(args))
    watchdog.ready()
    return aggregator.run(linger_seconds=LINGER_SECONDS if args.embedded else 0.0)


if __name__ == "__main__":
    main()
