"""`--update auto`: a plan within the profile's memory and a step time, by estimate and by trial.

What a plan will cost is estimated before anything is converted. The export then measures it, and
the micro-batch is the largest that fits the cap. Where it is smaller than what the plan was priced
for, or a step takes longer than allowed, the next plan has less to spend:

    bytes      ← bytes · found / priced             examples in a micro-batch
    operations ← operations · allowed / measured    seconds of a step
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from firmware_sim.bundle.reader import Bundle
from firmware_sim.training.limits import MIB
from profiles import Profile
from toolkit.branch.branch import Branch
from toolkit.errors import ExportError
from toolkit.export.bundle import Calibration
from toolkit.export.memory_estimate import PROCESS_MIB, RESERVE_MIB, RUNTIME_MIB, STREAM_MIB
from toolkit.export.prefix import MICRO_BATCH
from toolkit.updating.choosing import LEAST, PART, Chosen, Limits, choose
from toolkit.updating.costs import Costs, costs_of
from toolkit.updating.plans import AUTO, training
from toolkit.updating.uses import uses

_TRIES = 5
_MARGIN = 0.95  # of the time that is left after a step that was too long


@dataclass(frozen=True, eq=False)
class Automatic:
    """The branch with its plan, the bundle of it, and what the plan was chosen by."""

    branch: Branch
    bundle: Bundle
    chosen: Chosen
    part: float  # of the operations of a full update

    def line(self) -> str:
        return (
            f"auto trains {len(self.chosen.names)} tensors, {self.chosen.use:.0%} of the use of "
            f"all, with {self.part:.0%} of the operations of a full update"
        )


def limits_of(branch: Branch, costs: Costs, profile: Profile) -> Limits:
    """What the profile leaves for training.

    A process that only answers takes its weights four times (model and prefix on file, the
    prefix as kernels pack it, a program that predicts) and the largest two results of a layer.
    """
    weights = sum(value.nbytes for value in branch.weights().values())
    runtime = RUNTIME_MIB[profile.runtime]
    answering = 4 * weights + MICRO_BATCH * 2 * max(costs.sizes)
    fixed = (PROCESS_MIB + runtime + STREAM_MIB + RESERVE_MIB) * MIB + answering
    return Limits(
        operations=PART * costs.whole,
        bytes=profile.memory_cap_mib * MIB - fixed,
        examples=min(LEAST, profile.batch_size),
    )


def export_automatically(
    branch: Branch,
    profile: Profile,
    calibration: Calibration,
    write: Callable[[Branch], Bundle],
    *,
    max_step_seconds: float | None = None,
) -> Automatic:
    """Writes bundles until a step takes no longer than allowed; `write` replaces the one before."""
    use = uses(branch, calibration.images)
    costs = costs_of(branch, use)
    limits = limits_of(branch, costs, profile)
    before: frozenset[str] = frozenset()
    for _ in range(_TRIES):
        chosen = choose(costs, use, limits)
        if chosen.names == before:
            break
        plan = training(branch, AUTO, chosen.names)
        bundle, before = write(plan), chosen.names
        took, found = bundle.measured.step_seconds, bundle.manifest.micro_batch_size
        in_time = max_step_seconds is None or took <= max_step_seconds
        if in_time and found >= limits.examples:
            break
        if found < limits.examples:
            limits = replace(
                limits, bytes=min(limits.bytes, chosen.bytes) * found / limits.examples
            )
        if max_step_seconds is not None and not in_time:
            spent = _MARGIN * min(limits.operations, chosen.operations)
            limits = replace(limits, operations=spent * max_step_seconds / took)
    if in_time:
        return Automatic(plan, bundle, chosen, chosen.operations / costs.whole)
    assert max_step_seconds is not None
    raise ExportError(
        f"the smallest plan that was tried takes {took * 1e3:.1f} ms a step, and --max-step-ms "
        f"allows {max_step_seconds * 1e3:g} ms; a smaller branch or a smaller batch is faster."
    )
