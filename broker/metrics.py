"""Numbers to watch, in the text format that Prometheus reads."""

from __future__ import annotations

from collections.abc import Mapping

PREFIX = "stemshare_"


def metrics_text(values: Mapping[str, float]) -> str:
    """Returns one line for each value; a name may carry its label, as `refused{reason="late"}`."""
    return "".join(f"{PREFIX}{name} {value}\n" for name, value in values.items())
