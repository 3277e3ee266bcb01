"""The options of the aggregator program, and the aggregator that they describe."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from broker.aggregator.build import AggregatorSpec
from broker.aggregator.contract import EXCHANGES
from broker.aggregator.signing import Signing, read_signing_key
from broker.aggregator.slice_file import read_slices
from broker.aggregator.start_values import read_start_values
from broker.errors import SettingsRefused
from broker.merging.bounds import Bounds, parse_clip, parse_max_weight
from broker.merging.coordinator import MODES, Settings
from broker.merging.merge import MERGES, MergeRule
from broker.merging.optimizers import parse_optimizer
from broker.merging.staleness import STALENESS
from broker.protocol.quantisation import DOWNLINKS
from broker.protocol.topics import check_name
from broker.transport.options import add_link_options
from broker.transport.secret_files import exposure

DEFAULT_MERGE = "samples"  # of slices that state none, as those of earlier versions
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
        metavar="FILE",
        help="shared.onnx of a bundle; give it once for each kind of device",
    )
    add(
        "--start",
        type=Path,
        metavar="PATH",
        help="trained values that a new run starts from: a bundle, an aggregator's state folder "
        "or a file .safetensors (default: those of the slices)",
    )
    add("--fleet", help="name of the fleet")
    add("--state", type=Path, metavar="DIR", help="folder for its state")
    add("--check", action="store_true", help="only say what is whole in --state; changes nothing")
    add("--salvage", action="store_true", help="make a damaged --state usable; says what is lost")
    add(
        "--mode",
        choices=MODES,
        default="sync",
        help="merge in rounds, or every update at once (default %(default)s)",
    )
    add(
        "--merge",
        choices=MERGES,
        help="how updates are merged (default: as the slices state; mean for players, otherwise "
        f"{DEFAULT_MERGE})",
    )
    add(
        "--byzantine",
        type=int,
        default=0,
        metavar="F",
        help="number of devices that may lie (default %(default)s)",
    )
    add("--max-samples", type=int, metavar="N", help="largest sample count that is taken as it is")
    add(
        "--max-weight",
        default="3",
        metavar="M",
        help="from three devices on, limit a sample count to M × the median, or off "
        "(default %(default)s)",
    )
    add(
        "--clip",
        default="adaptive:2",
        metavar="adaptive:C",
        help="from three devices on, limit what an update moves to C × the median, or off "
        "(default %(default)s)",
    )
    add("--clip-norm", type=float, metavar="NORM", help="scale larger updates down to this norm")
    add(
        "--exchange",
        choices=EXCHANGES,
        default="delta",
        help="what devices send (default %(default)s)",
    )
    add(
        "--optimizer",
        metavar="NAME:NUMBER",
        help="how merged updates are applied: sgd:RATE, momentum:BETA[:RATE] or "
        "adam:RATE[:EPSILON] (default: deltas are added, and gradients applied by sgd:0.01)",
    )
    add(
        "--staleness",
        choices=STALENESS,
        default="polynomial",
        help="async: weight of an update that is s merges old: 1/√(1+s), or 1 (%(default)s)",
    )
    add(
        "--quorum",
        type=int,
        default=1,
        metavar="N",
        help="number of devices that a round needs (default %(default)s)",
    )
    add(
        "--deadline",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="after which a round closes with the updates it has (default %(default)g)",
    )
    add(
        "--rounds",
        type=int,
        metavar="R",
        help="number of merges after which it ends (default: never)",
    )
    add(
        "--downlink",
        choices=DOWNLINKS,
        default="float32",
        help="how θ_shared is sent; float16 halves it (default %(default)s)",
    )
    add(
        "--members",
        type=Path,
        metavar="FILE",
        help="names of the fleet's devices, one a line; others are refused (default: all may join)",
    )
    add(
        "--signing-key",
        type=Path,
        metavar="FILE",
        help="sign what devices act upon; a device with the public key ignores everything else",
    )
    add(
        "--metrics-port",
        type=int,
        metavar="PORT",
        help="serve the numbers of aggregator and devices to Prometheus at this port",
    )
    add(
        "--metrics-host",
        default="127.0.0.1",
        metavar="HOST",
        help="where --metrics-port listens (default %(default)s)",
    )
    add(
        "--dashboard",
        nargs="?",
        const="127.0.0.1:8765",
        metavar="HOST:PORT",
        help="start `toolkit dashboard` beside it (at %(const)s)",
    )
    add(
        "--embedded",
        action="store_true",
        help="run a broker in this process, at the --broker address",
    )
    add(
        "--inbox-mib",
        type=int,
        default=256,
        metavar="MIB",
        help="queue of updates; what does not fit is sent again (default %(default)s)",
    )
    add_link_options(parser)
    return parser


def require(parser: argparse.ArgumentParser, args: argparse.Namespace, *names: str) -> None:
    """Ends the program as the parser does if one of these options is missing."""
    if missing := [f"--{name}" for name in names if getattr(args, name) is None]:
        parser.error(f"the following arguments are required: {', '.join(missing)}")


def spec_of(args: argparse.Namespace) -> AggregatorSpec:
    """Returns the aggregator that the options describe; raises an error for wrong ones."""
    check_name("fleet", args.fleet)
    if args.inbox_mib < 1:
        raise SettingsRefused(f"an inbox of {args.inbox_mib} MiB holds nothing: take 1 or more.")
    values = read_start_values(args.start) if args.start is not None else None
    slices = read_slices(args.slice, chosen=values.tensors if values else ())
    merge, because = chosen_merge(args.merge, slices.merges)
    return AggregatorSpec(
        fleet=args.fleet,
        known=slices.known,
        start=slices.start | values.of(slices.known) if values else slices.start,
        start_from=values.origin if values else None,
        settings=Settings(
            mode=args.mode,
            merge=MergeRule(merge, byzantine=args.byzantine, bounds=_bounds(args)),
            optimizer=parse_optimizer(args.optimizer, args.exchange),
            quorum=args.quorum,
            deadline_seconds=args.deadline,
            rounds=args.rounds,
            staleness=args.staleness,
        ),
        folder=args.state,
        merge_because=because,
        exchange=args.exchange,
        downlink=args.downlink,
        members=args.members,
        signing=_signing(args),
        scraped=args.metrics_port is not None,
    )


def chosen_merge(given: str | None, stated: Mapping[Path, str]) -> tuple[str, str]:
    """Returns the merge of a fleet, and why: it is given, or the slices state it."""
    if given is not None:
        return given, "it is given"
    if not stated:
        return DEFAULT_MERGE, "no slice states a merge"
    by_merge = {merge: file for file, merge in stated.items()}
    if len(by_merge) > 1:
        which = " and ".join(f"{merge!r} in {file}" for merge, file in sorted(by_merge.items()))
        raise SettingsRefused(f"the slices state different merges ({which}): give --merge.")
    [(merge, file)] = by_merge.items()
    return merge, f"{file} states it"


def _signing(args: argparse.Namespace) -> Signing | None:
    if args.signing_key is None:
        return None
    if not args.allow_readable_keys and (exposed := exposure(args.signing_key)):
        raise SettingsRefused(exposed)
    return read_signing_key(args.signing_key)


def _bounds(args: argparse.Namespace) -> Bounds:
    return Bounds(
        max_samples=args.max_samples,
        max_weight=parse_max_weight(args.max_weight),
        clip=parse_clip(args.clip),
        clip_norm=args.clip_norm,
    )
