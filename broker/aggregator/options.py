"""The options of the aggregator program, and the aggregator that they describe."""

from __future__ import annotations

import argparse
from pathlib import Path

from broker.aggregator.build import AggregatorSpec
from broker.aggregator.contract import EXCHANGES
from broker.aggregator.slice_file import read_slices
from broker.errors import SettingsRefused
from broker.merging.coordinator import MODES, Settings
from broker.merging.merge import MERGES, MergeRule
from broker.merging.optimizers import Delta, parse_optimizer
from broker.merging.staleness import STALENESS
from broker.protocol.quantisation import DOWNLINKS
from broker.protocol.topics import check_name
from broker.transport.options import add_link_options

DESCRIPTION = """\
The aggregator service: merges what the devices of a fleet learn.

    python -m broker.aggregator --slice build/weak/shared.onnx --fleet greenhouse \\
        --broker mqtt://127.0.0.1:1883 --quorum 3 --rounds 100 --state state/aggregator

With --embedded it brings its own broker, and nothing has to be installed. Everything that it has
acknowledged is in --state: kill it at any moment and start it again with the same command.
"""


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m broker.aggregator",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--slice",
        type=Path,
        action="append",
        required=True,
        metavar="FILE",
        help="shared.onnx of a bundle; once for each kind of device",
    )
    add("--fleet", required=True, help="name of the fleet")
    add("--state", type=Path, required=True, metavar="DIR", help="where everything is kept")
    add("--mode", choices=MODES, default="sync", help="wait for rounds, or merge at once (sync)")
    add("--merge", choices=MERGES, default="samples", help="how updates are merged (samples)")
    add("--byzantine", type=int, default=0, metavar="F", help="devices that may lie (0)")
    add("--clip-norm", type=float, metavar="NORM", help="scale larger updates down to this norm")
    add("--exchange", choices=EXCHANGES, default="delta", help="what devices send (delta)")
    add(
        "--optimizer",
        default="sgd:0.01",
        metavar="NAME:RATE",
        help="applies gradients: sgd:RATE or adam:RATE (default %(default)s)",
    )
    add(
        "--staleness",
        choices=STALENESS,
        default="polynomial",
        help="async: an update s merges old counts 1/√(1+s), or fully (polynomial)",
    )
    add("--quorum", type=int, default=1, metavar="N", help="devices that a round needs (1)")
    add(
        "--deadline",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="a round closes then with whoever has sent (default %(default)g)",
    )
    add("--rounds", type=int, metavar="R", help="stop after so many merges (default: never)")
    add(
        "--downlink",
        choices=DOWNLINKS,
        default="float32",
        help="how θ_shared is sent; float16 halves it (default %(default)s)",
    )
    add("--embedded", action="store_true", help="bring a broker along, at the --broker address")
    add(
        "--inbox-mib",
        type=int,
        default=256,
        metavar="MIB",
        help="updates that may wait; more are dropped and sent again (default %(default)s)",
    )
    add_link_options(parser)
    return parser


def spec_of(args: argparse.Namespace) -> AggregatorSpec:
    """Returns the aggregator that the options describe; raises an error for wrong ones."""
    check_name("fleet", args.fleet)
    if args.inbox_mib < 1:
        raise SettingsRefused(f"an inbox of {args.inbox_mib} MiB holds nothing: take 1 or more.")
    known, start = read_slices(args.slice)
    return AggregatorSpec(
        fleet=args.fleet,
        known=known,
        start=start,
        settings=Settings(
            mode=args.mode,
            merge=MergeRule(args.merge, byzantine=args.byzantine, clip_norm=args.clip_norm),
            optimizer=Delta() if args.exchange == "delta" else parse_optimizer(args.optimizer),
            quorum=args.quorum,
            deadline_seconds=args.deadline,
            rounds=args.rounds,
            staleness=args.staleness,
        ),
        folder=args.state,
        exchange=args.exchange,
        downlink=args.downlink,
    )
