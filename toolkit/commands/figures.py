"""`toolkit figures`: the pictures and the table of a study."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from toolkit.terminal import quiet_terminal

EXAMPLES = "Example:\n\ntoolkit figures results/digits --out docs"


def figures(
    results: Annotated[Path, typer.Argument(help="Folder that `toolkit experiment` wrote.")],
    out: Annotated[
        Path | None, typer.Option(help="Where pictures go.", show_default="beside the results")
    ] = None,
) -> None:
    """Draw the paper's figure of a study as PNG and SVG, with a table in Markdown."""
    with quiet_terminal():
        from toolkit.experiment.figures.draw import draw_figures
        from toolkit.experiment.running.results import read_results
        from toolkit.writing import make_folder

        folder = out or results
        found = read_results(results)
        make_folder(folder)
        written = draw_figures(found, folder)
    typer.echo("\n".join(map(str, written)))
