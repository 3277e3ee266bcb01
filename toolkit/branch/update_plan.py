"""Which tensors of a branch train: the update plan.

all      what Keras calls trainable
last:K   the K last layers of them
biases   biases and shifts of batch normalisation, which need no stored input, and the last layer
auto     the tensors of most use for what they cost

What a plan leaves out is frozen, or received where it is shared. `auto` follows MCUNet's sparse
update and TinyTrain: of each tensor t there is

    use    ‖∂L/∂t‖² on calibration examples, to which a step of gradient descent is proportional
    cost   multiply-accumulates of its gradient, and of passing gradients back to its layer
    bytes  of its optimiser slots and gradient, and of the layer's input, which is kept for it

Behind every depth at which the backward pass may end, tensors are taken in the order of use per
byte while their cost is within the budget; the depth with the largest use in total is chosen. The
labels are drawn from the branch's own answers, as for Fisher's information, so none are needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from toolkit.autodiff.naming import named_variables
from toolkit.autodiff.program import Program
from toolkit.branch.branch import Branch
from toolkit.branch.counting import operations_of
from toolkit.branch.learning import Supervised
from toolkit.errors import ModelError

ALL, LAST, BIASES, AUTO = "all", "last:", "biases", "auto"
BUDGET = 0.4  # of the full update's multiply-accumulates
FROZEN_FORWARD = 0.25  # a convolution with constant weights takes about a quarter of the time
_SHIFTS = ("bias", "beta")
_KERNELS = frozenset({"Conv2D", "DepthwiseConv2dNative", "MatMul", "BatchMatMulV2"})
_EXAMPLES, _PART = 64, 8
Images = npt.NDArray[np.generic]


def planned(branch: Branch, plan: str, examples: Images, budget: float = BUDGET) -> Branch:
    """Returns the branch with this update plan; examples and budget are for `auto`."""
    if plan == ALL:
        return branch
    layers = list(dict.fromkeys(_layer(name) for name in _in_order(branch)))
    if plan == BIASES:
        shifts = {name for name in branch.trainable_names if _kind(name) in _SHIFTS}
        chosen = shifts | {name for name in branch.trainable_names if _layer(name) == layers[-1]}
    elif plan == AUTO:
        chosen = choose(branch, uses(branch, examples), budget)
    elif plan.startswith(LAST) and plan.removeprefix(LAST).isdecimal():
        last = layers[-int(plan.removeprefix(LAST)) :] if int(plan.removeprefix(LAST)) else []
        chosen = {name for name in branch.trainable_names if _layer(name) in last}
    else:
        chosen = set()
    if not chosen:
        raise ModelError(f"--update {plan} is none of all, last:K with K ≥ 1, biases and auto.")
    return replace(branch, update=plan, trained=frozenset(chosen))


def uses(branch: Branch, examples: Images) -> dict[str, float]:
    """‖∂L/∂t‖² of each tensor that may train, as a mean over parts of the examples."""
    if not isinstance(branch.learning, Supervised) or branch.learning.loss != "cross_entropy":
        raise ModelError("--update auto is for branches that tell classes apart; give last:K.")
    model, names = branch.model, set(branch.trainable_names)
    tensors = {n: v.value for n, v in named_variables(model).items() if n in names}
    closes = branch.trace(batch=1, training=False)
    softmax = closes.logits() != closes.y
    found = dict.fromkeys(tensors, 0.0)
    rng = np.random.default_rng(0)
    for start in range(0, min(len(examples), _EXAMPLES), _PART):
        part = examples[start : start + _PART].astype(np.float32) * np.float32(branch.input_scale)
        with tf.GradientTape() as tape:
            answers = model(part, training=False)
            logs = tf.math.log(answers + 1e-7) if softmax else tf.nn.log_softmax(answers)
            shares = np.exp(logs.numpy().astype(np.float64))
            labels = [rng.choice(row.size, p=row.ravel() / row.sum()) for row in shares]
            loss = -tf.reduce_mean(tf.gather(logs, labels, batch_dims=1))
        gradients = tape.gradient(loss, tensors)
        for name, gradient in gradients.items():
            found[name] += 0.0 if gradient is None else float(tf.reduce_sum(gradient * gradient))
    return found


@dataclass(frozen=True)
class Candidate:
    """A tensor that may train, at the place of its layer's node in the program."""

    name: str
    place: int
    cost: float  # multiply-accumulates of its gradient, for one example
    bytes: int
    use: float


def choose(branch: Branch, use: Mapping[str, float], budget: float) -> set[str]:
    """The names that `auto` chooses; those of the last layer are always among them."""
    program = branch.trace(batch=1, training=False)
    candidates = _candidates(branch, program, use)
    top = _layer(max(candidates, key=lambda c: c.place).name)
    head = {c.name for c in candidates if _layer(c.name) == top}
    last = min(c.place for c in candidates if c.name in head)
    costs = [operations_of(n) if n.op in _KERNELS else 0 for n in program.nodes]
    limit = budget * 3 * sum(costs)
    best, most = head, -1.0
    for depth in sorted({c.place for c in candidates}):
        forward = FROZEN_FORWARD * sum(costs[:depth]) + sum(costs[depth:])
        spent = forward + sum(costs[depth + 1 :])  # gradients of inputs behind the lowest layer
        if spent > limit and depth != last:
            continue
        taken, gained = set(head), 0.0
        reachable = [c for c in candidates if c.place >= depth and c.name not in head]
        for c in sorted(reachable, key=lambda c: c.use / max(c.bytes, 1), reverse=True):
            if spent + c.cost <= limit:
                spent += c.cost
                gained += c.use
                taken.add(c.name)
        if gained > most:
            best, most = taken, gained
    return best


def _candidates(branch: Branch, program: Program, use: Mapping[str, float]) -> list[Candidate]:
    """Kernels, biases and shifts; scales of batch normalisation stay in inference mode."""
    stored = {value: name for name, value in program.parameters.items()}
    copies = 2 + len(branch.learning.optimizer.slots)
    found: dict[str, Candidate] = {}
    for place, node in enumerate(program.nodes):
        for value in node.inputs:
            name = stored.get(value, "")
            if name not in use or name in found:
                continue
            own = 4 * copies * value.size
            if node.op in _KERNELS:
                kept = 4 * node.inputs[0].size
                found[name] = Candidate(name, place, operations_of(node), own + kept, use[name])
            elif _kind(name) in _SHIFTS:
                found[name] = Candidate(name, place, 0.0, own, use[name])
    if not found:
        raise ModelError("--update auto finds no kernel or bias that may train.")
    return list(found.values())


def _in_order(branch: Branch) -> list[str]:
    """What may train, in the order of the model."""
    names = set(branch.trainable_names)
    return [name for name in named_variables(branch.model) if name in names]


def _layer(name: str) -> str:
    return name.rpartition("/")[0]


def _kind(name: str) -> str:
    return name.rpartition("/")[2]
