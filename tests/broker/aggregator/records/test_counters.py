"""Counters are text that Prometheus reads, and that reads back as what it was."""

import re

from hypothesis import given
from hypothesis import strategies as st

from broker.aggregator.records.counters import Counters
from broker.metrics import metrics_text
from broker.protocol.messages import Reason
from tests.harness.metrics import read_metrics

# One sample of the Prometheus text format: a name, labels perhaps, and a number.
SAMPLE = re.compile(r'[a-z_]+(\{[a-z_]+="[^"\\\n]*"\})? [-+0-9.e]+')


def test_every_line_is_a_sample_with_our_prefix() -> None:
    counters = Counters(round=3, updates_accepted=7, merge_seconds=0.25)
    counters.refused[Reason.LATE] += 2
    counters.refused[Reason.WRONG_SHAPE] += 1
    lines = metrics_text(counters.values()).splitlines()
    assert all(SAMPLE.fullmatch(line) for line in lines), lines
    assert all(line.startswith("stemshare_") for line in lines)
    assert "stemshare_round 3" in lines
    assert "stemshare_merge_seconds 0.25" in lines
    assert 'stemshare_refused{reason="late"} 2' in lines
    assert 'stemshare_refused{reason="wrong-shape"} 1' in lines
    assert len({line.split()[0] for line in lines}) == len(lines), "no name twice"


def test_every_counter_reads_back() -> None:
    counters = Counters()
    for number, name in enumerate(vars(counters), 1):
        if name != "refused":
            setattr(counters, name, number)
    for number, reason in enumerate(Reason, 100):
        counters.refused[reason] = number
    found = read_metrics(metrics_text(counters.values()).encode())
    assert found == counters.values()
    assert found['refused{reason="early"}'] == 100 + list(Reason).index(Reason.EARLY)
    assert len(found) == len(vars(counters)) - 1 + len(Reason)


def test_nothing_refused_is_no_line() -> None:
    assert "refused" not in metrics_text(Counters().values())
    assert metrics_text({}) == ""


@given(st.dictionaries(st.from_regex(r"[a-z_]{1,9}", fullmatch=True), st.floats(allow_nan=False)))
def test_numbers_keep_every_digit(values: dict[str, float]) -> None:
    lines = metrics_text(values).splitlines()
    assert [float(line.split()[1]) for line in lines] == list(values.values())


def test_two_aggregators_do_not_count_together() -> None:
    one, other = Counters(), Counters()
    one.refused["late"] += 1
    assert other.refused == {}
