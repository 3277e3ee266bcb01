"""The device's command line, of which a pack may contain a part."""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
from collections.abc import Sequence
from pathlib import Path

from broker.log import Log
from broker.transport.secret_files import exposure
from firmware_sim.bundle.reader import open_bundle
from firmware_sim.errors import PackError
from firmware_sim.packs.format import Index, read_key
from firmware_sim.packs.installed import Packs
from firmware_sim.packs.places import Installed, model_folder

# Options that a pack sets; they cannot be given beside it.
_BROUGHT = (
    "bundle",
    "fleet",
    "id",
    "broker",
    "user",
    "password_file",
    "ca_file",
    "certificate_file",
    "key_file",
    "aggregator_key",
)
# A pack cannot set where it is kept, which key is trusted, which files are taken, and that nothing
# is trained.
_OF_THE_MACHINE = (
    "pack",
    "trust",
    "state",
    "allow_readable_keys",
    "check",
    "salvage",
    "show_store",
    "export_store",
    "erase_store",
)


def add_pack_options(parser: argparse.ArgumentParser) -> None:
    pack = parser.add_argument_group(
        "pack", "brings bundle, fleet, id, broker and credentials; may say task and more"
    )
    add = pack.add_argument
    add("--pack", type=Path, metavar="FILE", help="from `toolkit pack`; a newer one is installed")
    add("--trust", type=Path, metavar="FILE", help="public key (default: the first pack's)")


def options_of(
    parser: argparse.ArgumentParser,
    argv: Sequence[str] | None,
    log: Log,
    *,
    on_trial: bool = False,
) -> argparse.Namespace:
    """Returns the options, those of a pack included; options of the user override them.

    If a pack is refused, the installed one stays in use, if there is one. `on_trial`: the one that
    came over the broker is tried.
    """
    argv = sys.argv[1:] if argv is None else argv
    args = parser.parse_args(argv)
    if args.pack is None:
        _require(parser, args, "bundle", "task", "state")
        if args.trust:
            parser.error("--trust needs --pack")
        return args
    _require(parser, args, "state")
    if given := _given(parser, args, _BROUGHT):
        parser.error(f"--pack brings {given}: do not give both")
    trusted = read_key(args.trust) if args.trust else None
    packs = Packs(args.state, trusted=trusted, on_trial=on_trial)
    with contextlib.ExitStack() as unless_all_is_well:
        unless_all_is_well.callback(packs.close)
        installed = _install(packs, args, parser, argv, log)
        owner, version = installed.owner, installed.index.version
        log.event("pack", device=owner.device, fleet=owner.fleet, version=version)
        args = parser.parse_args([*installed.arguments, *argv])
        _require(parser, args, "task")
        _take_from(installed, args, before=packs.before_trial() if on_trial else None)
        unless_all_is_well.pop_all()
    args.packs = packs  # holds the lock until the process ends
    args.check_offered = lambda index: _check_index(parser, index, (*installed.arguments, *argv))
    return args


def _take_from(installed: Installed, args: argparse.Namespace, before: Installed | None) -> None:
    owner = installed.owner
    args.bundle, args.fleet, args.id = installed.bundle, owner.fleet, owner.device
    args.broker, args.user = owner.broker, owner.device
    args.password_file = installed.credential("password")
    args.ca_file = installed.credential("ca.pem")
    args.certificate_file = installed.credential("certificate.pem")
    args.key_file = installed.credential("key.pem")
    args.aggregator_key = installed.aggregator_key
    args.pack_version = installed.index.version
    args.inherits = args.state / model_folder(before.index) if before else None
    args.state = args.state / model_folder(installed.index)
    if installed.base:  # the memory of the device is what it was
        args.memory_cap_mib = _lowered(args.memory_cap_mib, installed, installed.base)


def _lowered(given: int | None, installed: Installed, base: Installed) -> int | None:
    """Returns the cap of the pack that was carried here, if it is below those of now."""
    most, own = (
        open_bundle(pack.bundle).manifest.profile.memory_cap_mib for pack in (base, installed)
    )
    return most if most < min(own, given or own) else given


def check_arguments(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    """Raises `PackError` for arguments in a pack that are unknown or not allowed there."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            args = parser.parse_args(list(arguments))
    except SystemExit:
        last = said.getvalue().strip().rpartition("error: ")[2]
        raise _not_understood(last[:200]) from None
    if given := _given(parser, args, (*_BROUGHT, *_OF_THE_MACHINE)):
        raise PackError(f"the arguments in a pack cannot say {given}.")


def _install(
    packs: Packs,
    args: argparse.Namespace,
    parser: argparse.ArgumentParser,
    argv: Sequence[str],
    log: Log,
) -> Installed:
    """Installs the pack; returns it, or the one that stays in use because this one is refused."""

    def check(index: Index) -> None:
        _check_index(parser, index, argv)

    try:
        if not args.allow_readable_keys and (exposed := exposure(args.pack)):
            raise PackError(exposed)
        packs.install(args.pack, check)
    except PackError as refused:
        stays = packs.current()
        if stays is None:
            raise
        log.event("pack_refused", text=str(refused), stays=stays.index.version)
        return stays
    installed = packs.current()
    assert installed is not None
    return installed


def _check_index(parser: argparse.ArgumentParser, index: Index, beside: Sequence[str]) -> None:
    """Raises `PackError` if the arguments in a pack are wrong, with those `beside` it or alone."""
    check_arguments(parser, index.arguments)
    if parser.parse_args([*index.arguments, *beside]).task is None:
        raise _not_understood("--task is missing")


def _not_understood(why: str) -> PackError:
    return PackError(f"the arguments in the pack are not understood: {why}.")


def _require(parser: argparse.ArgumentParser, args: argparse.Namespace, *names: str) -> None:
    if missing := [f"--{name}" for name in names if getattr(args, name) is None]:
        parser.error(f"the following arguments are required: {', '.join(missing)}")


def _given(parser: argparse.ArgumentParser, args: argparse.Namespace, names: Sequence[str]) -> str:
    """Returns the first of these options that differs from its default."""
    given = (name for name in names if getattr(args, name) != parser.get_default(name))
    name = next(given, "")
    return name and f"--{name.replace('_', '-')}"
