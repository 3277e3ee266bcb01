"""The site builds without a warning, and a dead link would be one."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def build(source: Path, out: Path) -> subprocess.CompletedProcess[str]:
    """As `make docs` does."""
    (line,) = re.findall(r"-m (sphinx .*-b html .*)", (ROOT / "Makefile").read_text("utf-8"))
    options = line.replace("build/docs", str(out)).split()
    options[options.index("docs")] = str(source)
    command = [sys.executable, "-m", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=200)


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    built = build(DOCS, tmp_path)
    assert (built.returncode, built.stderr) == (0, "")
    pages = {page.stem for page in DOCS.glob("*.md")}
    assert pages <= {page.stem for page in (tmp_path / "html").glob("*.html")}
    drawn = (tmp_path / "html" / "_images").glob("*.svg")
    assert {drawing.stem for drawing in drawn} == {"branches", "data", "round"}


def test_a_dead_link_is_an_error(tmp_path: Path) -> None:
    source = tmp_path / "docs"
    source.mkdir()
    shutil.copy(DOCS / "conf.py", source)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    dead = "[a](no-such-page.md) [b](#no-such-heading) ![c](no-such-drawing.svg)"
    (source / "index.md").write_text(f"# Title\n\n{dead}\n", encoding="utf-8")
    built = build(source, tmp_path / "out")
    assert built.returncode != 0
    for complaint in (
        "cross-reference target not found: 'no-such-page.md'",
        "cross-reference target not found: 'no-such-heading'",
        "image file not readable: no-such-drawing.svg",
    ):
        assert complaint in built.stderr


@pytest.mark.parametrize("drawing", sorted((DOCS / "drawings").glob("*.svg")), ids=lambda p: p.stem)
def test_a_drawing_can_be_read_in_light_and_in_dark(drawing: Path) -> None:
    """Each brings its own background and has colours for both."""
    text = drawing.read_text(encoding="utf-8")
    light, _, dark = text.partition("prefers-color-scheme: dark")
    for rule in (".panel {", "text {", ".box {"):
        assert rule in light and rule in dark
    assert "<title>" in text


@pytest.mark.parametrize(
    "page",
    ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "broker/brokers/mosquitto/README.md"]
    + [str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("examples/*/README.md"))],
)
def test_links_of_pages_outside_the_site_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        if "://" not in target:
            assert ((ROOT / page).parent / target).exists(), target
