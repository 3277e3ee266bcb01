"""The command line of a device."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import get_args

from broker.log import Log
from broker.transport.options import add_link_options, add_simulation_options
from firmware_sim.device.make_task import GAMES, STREAM, TASKS, TaskOptions
from firmware_sim.errors import CAP_REACHED
from firmware_sim.normalisation import How
from firmware_sim.packs.options import add_pack_options, options_of
from firmware_sim.playing.options import DqnOptions, usual_options
from firmware_sim.playing.player import game_of
from firmware_sim.store.retention import POLICIES
from firmware_sim.tasks.anomaly import QUANTILE
from firmware_sim.training.random_streams import stream_number
from firmware_sim.training.rounds import Plan, mini_batches
from firmware_sim.training.runtime import RUNTIMES
from profiles import Profile

DESCRIPTION = """The device agent: trains its branch, and learns together with a fleet.

    python -m firmware_sim.device --bundle build/weak --task digits --state state/pi-1 \\
        --broker mqtt://127.0.0.1:1883 --fleet greenhouse --id pi-1

or, with all of that in a file that `toolkit pack` wrote:

    python -m firmware_sim.device --pack pi-1.pack --state state/pi-1

With --isolated it trains alone, without a broker. It may be killed at any moment: the same command
continues from the checkpoint in --state.
"""


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m firmware_sim.device",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--bundle", type=Path, metavar="DIR", help="folder from `toolkit export`")
    add("--task", choices=(*TASKS, STREAM), help="what to train on")
    add("--state", type=Path, metavar="DIR", help="where checkpoints are kept")
    add("--check", action="store_true", help="only say what is whole in --state; changes nothing")
    add("--salvage", action="store_true", help="put a damaged checkpoint aside; says what is lost")
    add("--fleet", help="name of the fleet")
    add("--id", metavar="ID", help="name of this device; no two of a fleet may have the same")
    add("--isolated", action="store_true", help="train alone, without a broker")
    add("--steps", type=positive, default=100, metavar="N", help="mini-batches in a round (100)")
    add("--rate", type=rate, metavar="R", help="part of --steps to train (default: the profile's)")
    add(
        "--rounds",
        type=positive,
        metavar="N",
        help="number with --isolated (10; of a stream without end)",
    )
    add("--data", type=Path, metavar="PATH", help="npz: the file; cifar10: the folder")
    add(
        "--share",
        type=share,
        default=(0.0, 1.0),
        metavar="A:B",
        help="part of the training data that this device holds, as 0:0.2 (default all)",
    )
    add(
        "--anomaly-quantile",
        type=float,
        default=QUANTILE,
        metavar="Q",
        help="autoencoders: examples with a reconstruction error above this quantile of that on "
        "the test set are anomalous (default %(default)g)",
    )
    _add_stream_options(parser)
    _add_game_options(parser)
    add("--seed", type=int, help="of the order of the data and of the play (default: from --id)")
    add("--evaluate-every", type=positive, default=1, metavar="N", help="rounds (default 1)")
    add(
        "--checkpoint-seconds",
        type=seconds,
        default=60.0,
        metavar="S",
        help="time between checkpoints: the most work that a kill costs (default %(default)g)",
    )
    add(
        "--resend-seconds",
        type=seconds,
        default=10.0,
        metavar="S",
        help="a message without an answer is sent again after this time (default %(default)g)",
    )
    add(
        "--aggregator-key",
        type=Path,
        metavar="FILE",
        help="public key: what the aggregator did not sign is ignored (default: all is believed)",
    )
    add(
        "--guard",
        action="store_true",
        help="go on from the last good θ_shared when a new one makes the held-out score collapse",
    )
    add("--profile", metavar="NAME", help="refuse a bundle that was exported for another one")
    add(
        "--memory-cap-mib",
        type=int,
        metavar="N",
        help=f"lowers the profile's; at the cap the device stops with exit code {CAP_REACHED}",
    )
    add("--runtime", choices=tuple(RUNTIMES), help="default: the one that the bundle was made for")
    add_pack_options(parser)
    add_link_options(parser, usual_part_bytes="within the profile's packet_limit_kib")
    add_simulation_options(parser)
    return parser


def _add_stream_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("examples that come while it runs (--task stream)").add_argument
    add("--source", metavar="SPEC", help="FILE.py:FUNCTION, csv:PATH, mqtt:TOPIC, folder:DIR, …")
    add("--source-config", type=Path, metavar="FILE", help="TOML file with the source's settings")
    add(
        "--normalise",
        choices=get_args(How),
        default="bundle",
        help="each channel by the bundle's mean and deviation if it has them, by those that the "
        "device learns from what it sees, or not at all (default %(default)s)",
    )
    add(
        "--store-keep",
        choices=tuple(POLICIES),
        default="newest",
        help="which examples stay when the store is full (default %(default)s)",
    )
    add(
        "--label-hours",
        type=seconds,
        default=24.0,
        metavar="H",
        help="how long an example waits for its label (default %(default)g)",
    )
    add("--show-store", action="store_true", help="only say which examples --state holds")
    add("--export-store", type=Path, metavar="FILE", help="only write them to an .npz file")
    add("--erase-store", action="store_true", help="only erase them")


def _add_game_options(parser: argparse.ArgumentParser) -> None:
    """Options of tasks that play; the defaults of schedules are those usual for the game."""
    add = parser.add_argument_group(
        "games (--task atari, minatar, cartpole; or play, for any of gymnasium's)"
    ).add_argument
    add("--game", metavar="NAME", help="as breakout (the default); play: as LunarLander-v3")
    add(
        "--replay-frames",
        type=positive,
        metavar="N",
        help="most observations in the replay (default: as many as the memory cap allows)",
    )
    add("--replay-on-disk", action="store_true", help="atari: keep the replay in --state")
    add(
        "--sticky",
        type=float,
        default=0.0,
        metavar="P",
        help="probability that the last action is taken again (default %(default)g, the paper's)",
    )
    add("--warm-up-steps", type=positive, metavar="N", help="actions before the first mini-batch")
    add("--exploration-steps", type=positive, metavar="N", help="actions while which ε falls")
    add("--test-episodes", type=positive, metavar="N", help="of each evaluation (default 1)")
    add(
        "--clip-rewards",
        action=argparse.BooleanOptionalAction,
        help="learn the sign of points instead of points (default: for Atari)",
    )
    add(
        "--life-loss-ends",
        action=argparse.BooleanOptionalAction,
        help="atari: learn that nothing can be won after a lost life (default: no)",
    )


def read_options(
    parser: argparse.ArgumentParser,
    argv: Sequence[str] | None,
    log: Log,
    *,
    on_trial: bool = False,
) -> argparse.Namespace:
    """Returns the options, those of a pack included; ends the program if they contradict."""
    args = options_of(parser, argv, log, on_trial=on_trial)
    if not args.isolated and not (args.fleet and args.id):
        parser.error("say --fleet NAME and --id ID, or --isolated to train without a fleet")
    if (args.latency_ms or args.loss) and not args.simulate_link:
        parser.error("--latency-ms and --loss need --simulate-link")
    if args.source and args.task != STREAM:
        parser.error(f"--source needs --task {STREAM}")
    args.id = args.id or "device"
    if args.seed is None:
        args.seed = stream_number(args.id)
    return args


def task_options(args: argparse.Namespace) -> TaskOptions:
    return TaskOptions(
        data=args.data,
        features_folder=args.state,
        share=args.share,
        anomaly_quantile=args.anomaly_quantile,
        seed=args.seed,
        game=args.game,
        sticky=args.sticky,
        replay_frames=args.replay_frames,
        replay_folder=args.state if args.replay_on_disk else None,
        dqn=_dqn_options(args) if args.task in GAMES else None,
    )


def _dqn_options(args: argparse.Namespace) -> DqnOptions:
    """The options usual for the game, replaced where the user chose others."""
    chosen = {
        field.name: getattr(args, field.name)
        for field in fields(DqnOptions)
        if getattr(args, field.name, None) is not None
    }
    return replace(usual_options(game_of(args.task, args.game)), **chosen)


def interaction_rate(args: argparse.Namespace, profile: Profile) -> float:
    return float(args.rate or profile.interaction_rate)


def plan_of(args: argparse.Namespace, profile: Profile) -> Plan:
    return Plan(
        steps=mini_batches(args.steps, interaction_rate(args, profile)),
        evaluate_every=args.evaluate_every,
        checkpoint_seconds=args.checkpoint_seconds,
        resend_seconds=args.resend_seconds,
    )


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def seconds(text: str) -> float:
    number = float(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError("must be above 0")
    return number


def rate(text: str) -> float:
    number = float(text)
    if not 0 < number <= 1:
        raise argparse.ArgumentTypeError("must be above 0 and at most 1")
    return number


def share(text: str) -> tuple[float, float]:
    start, _, stop = text.partition(":")
    try:
        return float(start), float(stop)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not A:B, as 0:0.2 is") from None
