"""How the documentation is built: `make docs`. Every warning is an error there."""

from __future__ import annotations

import tomllib
from pathlib import Path

_PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]

project = _PROJECT["name"]
release = version = _PROJECT["version"]
html_title = f"{project} {version}"

extensions = ["myst_parser"]
myst_heading_anchors = 3  # so that links to headings are checked
myst_links_external_new_tab = False
exclude_patterns = ["build"]

html_theme = "furo"
html_static_path: list[str] = []
html_copy_source = False
html_show_sphinx = False

# Only `make docs-links` asks other hosts. What looks like an address in an example is none.
linkcheck_ignore = [r"https?://(localhost|127\.0\.0\.1)"]
linkcheck_timeout = 20
linkcheck_retries = 2
