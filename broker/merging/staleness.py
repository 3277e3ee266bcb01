"""The weight of a late update when the coordinator does not wait for all devices.

The staleness s of an update is the number of merges since its device received the θ_shared from
which it trained.
"""

from __future__ import annotations

STALENESS = ("polynomial", "none")


def staleness_weight(rule: str, staleness: int) -> float:
    """Returns w(s) = (1 + s)^(-1/2) for polynomial (FedAsync, Xie et al. 2019); 1 for none."""
    if rule not in STALENESS:
        raise ValueError(f"staleness {rule!r} is unknown: choose one of {', '.join(STALENESS)}.")
    if staleness < 0:
        raise ValueError(f"an update cannot have staleness {staleness}: its θ is of a later merge.")
    return 1.0 if rule == "none" else float((1 + staleness) ** -0.5)
