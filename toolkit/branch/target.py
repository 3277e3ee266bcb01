"""The target of a branch: stated, or found from its loss and the shape of its output."""

from __future__ import annotations

from firmware_sim.bundle.target import Kind, Target
from toolkit.branch.learning import DoubleQ, Learning, Supervised
from toolkit.errors import ModelError

Shape = tuple[int | None, ...]  # the first is the batch, None


def target_of(
    name: str, learning: Learning, *, takes: Shape, answers: Shape, scale: float = 1.0
) -> Target | None:
    """Returns the target, None for a player; raises `ModelError` if the output does not fit it."""
    if isinstance(learning, DoubleQ):
        if len(answers) != 2:
            raise ModelError(f"the model of {name} answers {answers}; it must be (None, actions).")
        return None
    kind = _kind(learning, answers)
    own = tuple(int(n or 0) for n in answers[1:])
    match kind:
        case "class" if len(answers) == 2:
            return Target(kind, (), own[-1])
        case "class_per_position" if len(answers) > 2:
            return Target(kind, own[:-1], own[-1])
        case "numbers" if len(answers) > 1:
            return Target(kind, own)
        case "input" if answers == takes:
            return Target(kind, own, scale=scale)
    wanted = {
        "class": "(None, classes)",
        "class_per_position": "(None, positions, classes)",
        "numbers": "(None, numbers)",
        "input": f"{takes}, which is what it takes",
    }
    raise ModelError(
        f"the model of {name} answers {answers}; for the target {kind!r} it must be {wanted[kind]}."
    )


def _kind(learning: Supervised, answers: Shape) -> Kind:
    if learning.target is not None:
        return learning.target
    if learning.loss != "cross_entropy":
        return "numbers"
    return "class_per_position" if len(answers) > 2 else "class"
