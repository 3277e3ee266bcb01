"""`toolkit experiment TASK`: studies of labelled examples and of games."""

from __future__ import annotations

import typer

from toolkit.commands.experiment.players import players
from toolkit.commands.experiment.supervised import supervised
from toolkit.experiment.players.cell import TASKS as PLAYED
from toolkit.experiment.supervised.cell import TASKS as LABELLED

experiment = typer.Typer(
    help="Compare devices that learn alone, all alike, and each as it can (the paper's section 4)."
    "\n\nEvery cell of a study runs the real agents, aggregator and wire format. Stop it at any "
    "moment, and give the same command again.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    epilog="Examples:\n\n"
    "toolkit experiment digits   (a few minutes, then `toolkit figures results/digits`)\n\n"
    "toolkit experiment cifar10 --rounds 200 --seeds 3 --weak-fraction 0.05,0.2,0.5\n\n"
    "toolkit experiment cifar10 --modes heterogeneous --topology cascading "
    "--branch-dropout both\n\n"
    "toolkit experiment npz --data my.npz --split dirichlet:0.5 --engine tflite\n\n"
    "toolkit experiment cartpole --weak-rate 1   (a few minutes)\n\n"
    "toolkit experiment minatar --game breakout,asterix --coordinator sync,async",
)

for _task in LABELLED:
    experiment.command(_task)(supervised)
for _task in PLAYED:
    experiment.command(_task)(players)
