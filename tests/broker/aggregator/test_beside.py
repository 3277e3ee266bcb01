"""A dashboard beside an aggregator."""

from __future__ import annotations

import pytest

from broker.aggregator.beside import dashboard_beside
from broker.aggregator.options import arguments
from broker.errors import SettingsRefused


def test_it_does_not_take_the_aggregators_own_credentials() -> None:
    """A broker that knows clients by their users would throw the aggregator out."""
    args = arguments().parse_args(["--fleet", "orchard", "--dashboard", "--user", "aggregator"])
    assert args.dashboard == "127.0.0.1:8765"
    with pytest.raises(SettingsRefused, match=r"those of the observer"), dashboard_beside(args):
        pass
