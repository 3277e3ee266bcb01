"""`toolkit provision`: what the command says, and that it says no secret."""

import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

Toolkit = Callable[..., Any]


def test_a_fleet_is_made_extended_and_reduced(toolkit: Toolkit, tmp_path: Path) -> None:
    out = tmp_path / "farm"
    options = ("provision", "--fleet", "farm", "--out", out)
    first = toolkit(*options, "--device", "pi-1", "--device", "pi-2")
    assert (first.code, first.err) == (0, "")
    assert first.out.splitlines()[0] == f"{out}: aggregator, pi-1, pi-2 added, nobody as before"
    assert f"{out / 'devices' / 'pi-2'} goes to pi-2" in first.out
    secret = (out / "devices" / "pi-1" / "password").read_text(encoding="utf-8").strip()

    second = toolkit(*options, "--device", "pi-1", "--device", "pi-3")
    assert second.out.splitlines()[0] == f"{out}: pi-3 added, aggregator, pi-1 as before"
    assert second.out.splitlines()[-1].startswith("  send SIGHUP to a mosquitto")
    assert (out / "devices" / "pi-1" / "password").read_text(encoding="utf-8").strip() == secret

    moved = toolkit(*options, "--device", "pi-1", "--host", "other.local")
    assert "the broker has a new certificate, for other.local: replace" in moved.out

    rotated = toolkit(*options, "--rotate", "pi-1")
    assert rotated.out == f"pi-1 has new credentials in {out}\n"
    assert (out / "devices" / "pi-1" / "password").read_text(encoding="utf-8").strip() != secret

    removed = toolkit(*options, "--remove", "pi-2")
    assert removed.out.startswith("pi-2 is shut out once the broker has read")
    passwords = (out / "broker" / "passwords").read_text(encoding="utf-8")
    users = {line.partition(":")[0] for line in passwords.splitlines()}
    assert users == {"aggregator", "pi-1", "pi-3"}
    said = "".join(ran.out for ran in (first, second, moved, rotated, removed))
    assert secret not in said
    assert (out / ".gitignore").read_text(encoding="utf-8") == "*\n"


def test_an_authority_that_others_can_read_lets_nobody_in(toolkit: Toolkit, tmp_path: Path) -> None:
    out = tmp_path / "farm"
    options = ("provision", "--fleet", "farm", "--out", out)
    toolkit(*options, "--device", "pi-1")
    every = [path for path in out.rglob("*") if path.is_file()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in every} == {0o600}
    assert {stat.S_IMODE(p.stat().st_mode) for p in out.rglob("*") if p.is_dir()} == {0o700}
    key = out / "authority" / "ca.key"
    key.chmod(0o644)
    refusal = (
        f"others can read or change {key}, which holds a secret: chmod 600 {key}, "
        "or give --allow-readable-keys."
    )
    assert toolkit(*options, "--device", "pi-2").refusal == refusal
    assert toolkit(*options, "--rotate", "pi-1").refusal == refusal
    assert not (out / "devices" / "pi-2").exists()
    allowed = toolkit(*options, "--device", "pi-2", "--rotate", "pi-1", "--allow-readable-keys")
    assert allowed.code == 0
    assert (out / "devices" / "pi-2").is_dir()


def test_what_cannot_be_is_one_sentence(toolkit: Toolkit, tmp_path: Path) -> None:
    out = tmp_path / "farm"
    toolkit("provision", "--fleet", "farm", "--out", out)
    for options, sentence in (
        (("--fleet", "farm", "--device", "a/b"), "a device cannot be called 'a/b': "),
        (("--fleet", "other", "--device", "a"), f"{out} belongs to fleet 'farm'; "),
        (("--fleet", "farm", "--remove", "nobody"), "fleet 'farm' has no device 'nobody'."),
    ):
        assert toolkit("provision", "--out", out, *options).refusal.startswith(sentence)
