"""The device agent: trains its branch, and learns together with a fleet.

    python -m firmware_sim.device --bundle build/weak --task digits --state state/pi-1 \\
        --broker mqtt://127.0.0.1:1883 --fleet greenhouse --id pi-1

or, with all of that in a file that `toolkit pack` wrote:

    python -m firmware_sim.device --pack pi-1.pack --state state/pi-1

With --isolated it trains alone, without any broker. Kill it at any moment and start it again with
the same command: it goes on from its checkpoint in --state.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import signal
import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NoReturn

from broker.durable import claim
from broker.log import Log
from broker.protocol.messages import DeviceState, to_bytes
from broker.protocol.slice import SharedTensor, Slice
from broker.protocol.topics import Topics, check_name
from broker.systemd import Watchdog
from broker.transport.address import parse_address
from broker.transport.options import (
    add_link_options,
    add_simulation_options,
    open_channel,
    part_bytes_within,
    simulated_link,
)
from broker.transport.transport import Will
from firmware_sim.bundle.reader import MANIFEST, Bundle, open_bundle
from firmware_sim.device.agent import Agent
from firmware_sim.device.compression import Compression
from firmware_sim.device.isolated import train_alone
from firmware_sim.device.make_task import GAMES, TASKS, make_task
from firmware_sim.errors import (
    CAP_REACHED,
    BundleError,
    CheckpointError,
)
from firmware_sim.packs.options import add_pack_options, options_of
from firmware_sim.playing.options import DqnOptions, usual_options
from firmware_sim.playing.player import game_of
from firmware_sim.probe import peak_memory_bytes
from firmware_sim.tasks.task import TaskOptions
from firmware_sim.training.checkpoint import Checkpoints, Residual
from firmware_sim.training.learner import Learner
from firmware_sim.training.limits import (
    check_profile,
    check_storage,
    limit_data,
    limits_of,
    return_freed_memory,
)
from firmware_sim.training.rounds import Plan, Rounds, cap_reached, stopped
from firmware_sim.training.runtime import RUNTIMES, Model, installed_runtimes
from profiles import Profile, StemshareError

LARGEST_MESSAGE = 256 * 2**20  # bytes; θ_shared of the fleet's largest slice


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m firmware_sim.device",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--bundle", type=Path, metavar="DIR", help="folder from `toolkit export`")
    add("--task", choices=TASKS, help="what to train on")
    add("--state", type=Path, metavar="DIR", help="where checkpoints are kept")
    add("--fleet", help="name of the fleet")
    add("--id", metavar="ID", help="name of this device; no two of a fleet may have the same")
    add("--isolated", action="store_true", help="train alone, without a broker")
    add("--steps", type=positive, default=100, metavar="N", help="mini-batches in a round (100)")
    add("--rate", type=rate, metavar="R", help="part of --steps to do (default: the profile's)")
    add("--rounds", type=positive, default=10, metavar="N", help="with --isolated: how many (10)")
    add("--data", type=Path, metavar="PATH", help="npz: the file; cifar10: the folder")
    add(
        "--share",
        type=share,
        default=(0.0, 1.0),
        metavar="A:B",
        help="part of the training data that this device holds, as 0:0.2 (default all)",
    )
    add_game_options(parser)
    add("--seed", type=int, default=0, help="of the order of the data and of the play")
    add("--evaluate-every", type=positive, default=1, metavar="N", help="rounds (default 1)")
    add(
        "--checkpoint-seconds",
        type=seconds,
        default=60.0,
        metavar="S",
        help="a kill costs at most so much work (default %(default)g)",
    )
    add(
        "--resend-seconds",
        type=seconds,
        default=10.0,
        metavar="S",
        help="what was not answered by then is sent again (default %(default)g)",
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


def add_game_options(parser: argparse.ArgumentParser) -> None:
    """What concerns tasks that play; schedules are by default those usual for the game."""
    add = parser.add_argument_group(
        "games (--task atari, minatar, cartpole; or play, for any of gymnasium's)"
    ).add_argument
    add("--game", metavar="NAME", help="as breakout (the default); play: as LunarLander-v3")
    add(
        "--replay-frames",
        type=positive,
        metavar="N",
        help="most of the replay (default: what fits into the memory cap)",
    )
    add("--replay-on-disk", action="store_true", help="atari: keep the replay in --state")
    add(
        "--sticky",
        type=float,
        default=0.0,
        metavar="P",
        help="probability that the last action is taken again (default %(default)g, the paper's)",
    )
    add("--warm-up-steps", type=positive, metavar="N", help="played before anything is trained")
    add("--exploration-steps", type=positive, metavar="N", help="while which ε falls")
    add("--test-episodes", type=positive, metavar="N", help="of each evaluation (default 1)")
    add(
        "--clip-rewards",
        action=argparse.BooleanOptionalAction,
        help="learn the sign of points, not points (default: for Atari)",
    )
    add(
        "--life-loss-ends",
        action=argparse.BooleanOptionalAction,
        help="atari: learn that nothing can be won after a lost life (default: no)",
    )


def dqn_options(args: argparse.Namespace) -> DqnOptions:
    """What is usual for the game, and what the user says."""
    said = {
        field.name: getattr(args, field.name)
        for field in fields(DqnOptions)
        if getattr(args, field.name, None) is not None
    }
    return replace(usual_options(game_of(args.task, args.game)), **said)


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


def main(argv: Sequence[str] | None = None) -> None:
    parser, log = arguments(), Log()
    try:
        args = options_of(parser, argv, log)
    except StemshareError as error:
        end(error, log)
    if not args.isolated and not (args.fleet and args.id):
        parser.error("say --fleet NAME and --id ID, or --isolated to train without a fleet")
    if (args.latency_ms or args.loss) and not args.simulate_link:
        parser.error("--latency-ms and --loss need --simulate-link")
    args.id = args.id or "device"
    try:
        scores = work(args, log)
    except StemshareError as error:
        end(error, log)
    except MemoryError:  # at the hard limit; the last checkpoint stays
        end(cap_reached(args.state), log)
    except KeyboardInterrupt:  # before there was anything to stop
        end(stopped(args.state), log)
    log.event("ended", peak_bytes=peak_memory_bytes())
    print(json.dumps(scores))


def end(error: StemshareError, log: Log) -> NoReturn:
    log.end_line()
    sys.stderr.write(f"{error.report}\n")
    sys.exit(error.exit_code)


def work(args: argparse.Namespace, log: Log) -> dict[str, float]:
    """Puts the parts together and trains; answers the final scores."""
    return_freed_memory()
    check_name("device", args.id)
    if not args.isolated:  # what is mistyped is said before anything is loaded
        Topics(args.fleet)
        parse_address(args.broker)
    bundle = open_bundle(args.bundle)
    profile = profile_of(bundle)
    if args.profile:
        check_profile(bundle, args.profile)
    limits = limits_of(bundle, args.memory_cap_mib)
    check_storage(bundle, args.state, limits)
    limit_data(limits)
    options = TaskOptions(
        data=args.data,
        share=args.share,
        seed=args.seed,
        game=args.game,
        sticky=args.sticky,
        replay_frames=args.replay_frames,
        replay_folder=args.state if args.replay_on_disk else None,
        dqn=dqn_options(args) if args.task in GAMES else None,
    )
    task = make_task(args.task, bundle, options)
    model = Model(
        bundle.model, runtime=runtime_for(bundle, args.runtime), threads=profile["threads"]
    )
    shared = shared_slice(bundle)
    interaction_rate = args.rate or profile["interaction_rate"]
    steps = mini_batches(args.steps, interaction_rate)
    plan = Plan(steps, args.evaluate_every, args.checkpoint_seconds, args.resend_seconds)
    residual = Residual()
    checkpoints = Checkpoints(
        args.state,
        device=args.id,
        bundle=bundle.manifest["files"]["model.tflite"]["sha256"],
        residual=residual,
    )
    lock = claim(args.state)
    if lock is None:
        raise CheckpointError(f"another device is using {args.state}.")
    watchdog = Watchdog()
    rounds = Rounds(
        Learner(model, task, shared),
        checkpoints,
        plan,
        log,
        cap_reached=limits.reached,
        alive=watchdog.alive,
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: rounds.stop())
    log.event(
        "start",
        device=args.id,
        branch=bundle.manifest["branch"]["name"],
        task=args.task,
        steps=steps,
        rate=interaction_rate,
    )
    watchdog.ready()
    if args.isolated:
        return train_alone(rounds, args.rounds)

    topics = Topics(args.fleet)
    gone = to_bytes(DeviceState(device=args.id, online=False))
    limit = LARGEST_MESSAGE
    channel = open_channel(
        args,
        client_id=topics.client_id(args.id),
        subscriptions=topics.of_device(args.id),
        will=Will(topics.state(args.id), gone),
        limit=limit,
        inbox_bytes=2 * limit,
        part_bytes=part_bytes_within(profile["packet_limit_kib"]),
        shape=simulated_link(
            args, bandwidth_kbps=profile["bandwidth_kbps"], seed=f"{args.seed}/{args.id}"
        ),
    )
    agent = Agent(
        device=args.id,
        shared=shared,
        rounds=rounds,
        channel=channel,
        topics=topics,
        limit=limit,
        log=log,
        about={
            "profile": profile["name"],
            "branch": bundle.manifest["branch"]["name"],
            "runtime": model.runtime,
        },
        compression=Compression(profile["update_quantisation"], residual),
    )
    with contextlib.closing(channel):
        try:
            return agent.run()
        finally:
            agent.leave()


def profile_of(bundle: Bundle) -> dict[str, Any]:
    """The profile in the manifest; a bundle of an earlier version may not have every key."""
    profile: dict[str, Any] = bundle.manifest["profile"]
    if missing := [key.name for key in fields(Profile) if key.name not in profile]:
        raise BundleError(
            f"the profile in {bundle.folder / MANIFEST} lacks {', '.join(missing)}; "
            "export the bundle again."
        )
    return profile


def mini_batches(steps: int, rate: float) -> int:
    """How many of the `steps` of a full round a device does that interacts at `rate`."""
    return max(1, round(steps * rate))


def runtime_for(bundle: Bundle, wanted: str | None) -> str | None:
    """What the user wants, or the one that the bundle was made for if it is installed."""
    made_for = bundle.manifest["profile"]["runtime"]
    return wanted or (made_for if made_for in installed_runtimes() else None)


def shared_slice(bundle: Bundle) -> Slice:
    """What the bundle shares, as its manifest says; a device reads no ONNX."""
    return Slice.of(
        SharedTensor(t["name"], tuple(t["shape"]), t["dtype"], t["fingerprint"])
        for t in bundle.manifest["tensors"]
        if t["shared"]
    )


if __name__ == "__main__":
    main()
