"""`toolkit figures`: the pictures and the tables of a study."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from toolkit.errors import ExperimentError
from toolkit.terminal import quiet_terminal

EXAMPLES = (
    "Examples:\n\ntoolkit figures results/digits --out docs\n\n"
    "toolkit figures results/digits --write-into docs/reproduction.md"
)


def figures(
    results: Annotated[Path, typer.Argument(help="Folder that `toolkit experiment` wrote.")],
    out: Annotated[
        Path | None, typer.Option(help="Where pictures go.", show_default="beside the results")
    ] = None,
    write_into: Annotated[
        Path | None,
        typer.Option(
            help="A Markdown file: its tables between <!-- table: FOLDER --> and <!-- end --> are "
            "written anew.",
            metavar="FILE",
        ),
    ] = None,
) -> None:
    """Draw the paper's figure of a study as PNG and SVG, with its tables.

    Tables have the mean and the standard error of every arm, and its differences to the controls,
    seed by seed.
    """
    with quiet_terminal():
        from toolkit.experiment.figures import documents
        from toolkit.experiment.figures.draw import draw_figures
        from toolkit.experiment.figures.study_tables import study_tables
        from toolkit.experiment.running.results import read_results
        from toolkit.writing import make_folder

        folder = out or results
        found = read_results(results)
        make_folder(folder)
        written = draw_figures(found, folder)
        tables = study_tables(found)
        if write_into is not None:
            if not write_into.is_file() or not documents.write_into(write_into, results, tables):
                raise ExperimentError(
                    f"{write_into} has no place for a table of {results}; put one there with "
                    f"<!-- table: {results} --> and {documents.END}."
                )
            written.append(write_into)
    console = Console()
    for of_one in tables:
        console.print(of_one.for_terminal())
    typer.echo("\n".join(map(str, written)))
