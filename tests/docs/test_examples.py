"""The examples run as their READMEs say, in short form, and learn something."""

from __future__ import annotations

import json
import re
import sys

from tests.docs.pages import ROOT, Pages, StartSession


def scores(said: str) -> list[dict[str, float]]:
    """What each device printed at its end, in the order of their ends."""
    return [json.loads(line) for line in said.splitlines() if line.startswith("{")]


def test_keyword_spotting_alone_and_in_a_fleet(pages: Pages, session: StartSession) -> None:
    (page,) = pages("examples/keyword_spotting/README.md")
    here = session({"--rounds 30": "--rounds 10"})
    _, _, alone, fleet = ["", *(here.run(b) for b in page.blocks() if b.language == "sh")]
    (weak_alone,) = scores(alone)
    weak, powerful = sorted(scores(fleet), key=lambda score: score["accuracy"])
    assert weak_alone["accuracy"] < weak["accuracy"] - 0.05  # 75 % and 92 %
    assert powerful["accuracy"] > 0.9


def test_a_cascade_of_a_pair_of_networks(pages: Pages, session: StartSession) -> None:
    (page,) = pages("examples/vibration/README.md")
    here = session({"--rounds 20": "--rounds 10"})
    _, _, _, alone, fleet = [here.run(b) for b in page.blocks() if b.language == "sh"]
    (node_alone,) = scores(alone)
    node, gateway = sorted(scores(fleet), key=lambda score: score["accuracy"])
    assert node_alone["accuracy"] < node["accuracy"] - 0.05  # 82 % and 98 %
    assert node["accuracy"] >= 0.9
    assert gateway["accuracy"] >= 0.95


def test_two_machines_are_watched_live_and_labels_come_late(
    pages: Pages, session: StartSession
) -> None:
    (page,) = pages("examples/live_vibration/README.md")
    here = session({"--rounds 30": "--rounds 15", "--seconds 60": "--seconds 15 --late 1"})
    found = scores("".join(here.run(block) for block in page.blocks()))
    assert len(found) == 2
    for score in found:  # of windows of its own machine, which is mostly in two of four states
        assert score["accuracy"] > 0.4


def test_a_rattling_machine_is_an_anomaly(pages: Pages, session: StartSession) -> None:
    (page,) = pages("examples/anomaly/README.md")
    here = session({"--seconds 40": "--seconds 8"})
    said = "".join(here.run(block) for block in page.blocks())
    healthy, rattling = (
        int(re.search(rf"{name}: (\d+)% anomalous", said)[1])  # type: ignore[index]
        for name in ("healthy", "rattling")
    )
    assert healthy <= 20
    assert rattling >= 80


def test_an_application_learns_from_the_person_beside_it(
    pages: Pages, session: StartSession
) -> None:
    (page,) = pages("examples/application/README.md")
    here = session({})
    said = "".join(here.run(block) for block in page.blocks())
    right = [int(part) for part in re.findall(r"(\d+)% right", said)]
    assert len(right) == 6
    assert right[-1] > max(45, right[0])  # by chance: 25


def test_a_folder_of_pictures(pages: Pages, session: StartSession) -> None:
    (page,) = pages("examples/image_folder/README.md")
    here = session({"--rounds 20 --steps 30": "--rounds 6 --steps 30"})
    said = "".join(here.run(block) for block in page.blocks())
    assert "pictures [16, 16, 3] of 10 classes" in said
    (score,) = scores(said)
    assert score["accuracy"] > 0.7
    assert "the same answer to" in said


def test_a_folder_without_pictures_is_refused_in_a_sentence(
    pages: Pages, session: StartSession
) -> None:
    (page,) = pages("examples/image_folder/README.md")
    here = session({})
    (here.folder / "empty").mkdir()
    script = "examples/image_folder/folder_to_npz.py"
    block = next(block for block in page.blocks() if script in block.text)
    tried = f"if python {script} empty 2> said; then exit 1; fi; cat said\n"
    said = here.run(type(block)("sh", tried, "", ""))
    assert said == "error: empty must hold a folder for each of at least two classes.\n"


def test_a_game_of_your_own(pages: Pages, session: StartSession) -> None:
    (page,) = pages("examples/gym_environment/README.md")
    here = session(
        {"--evaluate-every 10 --test-episodes 50": "--evaluate-every 20 --test-episodes 20"}
    )
    (score,) = scores("".join(here.run(block) for block in page.blocks()))
    assert score["score"] > 0.3  # at random: below 0
    assert (here.folder / "build" / "garden.gif").read_bytes().startswith(b"GIF8")


def test_a_device_without_this_package(pages: Pages, session: StartSession) -> None:
    (page,) = pages("examples/plain_client/README.md")
    here = session({"--rounds 20": "--rounds 8"})
    normal, plain = scores("".join(here.run(block) for block in page.blocks()))
    assert normal["accuracy"] > 0.8
    assert plain["accuracy"] > 0.8


def test_the_plain_device_is_one_short_file_that_imports_nothing_of_ours() -> None:
    source = (ROOT / "examples/plain_client/device.py").read_text(encoding="utf-8")
    assert len(source.splitlines()) == 252  # as its README says
    found = re.findall(r"^\s*(?:import|from) (\w+)", source, flags=re.MULTILINE)
    others = set(found) - sys.stdlib_module_names
    assert others == {"numpy", "paho", "safetensors", "cryptography"}
