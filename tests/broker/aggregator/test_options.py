"""The aggregator that a command line describes, and the merge that it takes from the slices."""

from __future__ import annotations

import shutil
from pathlib import Path

import onnx
import pytest
from onnx import helper

from broker.aggregator.build import AggregatorSpec
from broker.aggregator.options import arguments, spec_of
from broker.aggregator.slice_file import MERGE
from broker.errors import SettingsRefused
from broker.merging.optimizers import SGD, Delta, Momentum, PseudoGradient
from tests.harness.slices import SliceFile, small_slice

__all__ = ["small_slice"]


@pytest.fixture
def slices(small_slice: SliceFile, tmp_path: Path) -> dict[str, Path]:
    """The same slice in files that state no merge, mean or samples."""
    old = tmp_path / "old.onnx"
    shutil.copy(small_slice.path, old)
    found = {"old": old}
    for merge in ("mean", "samples"):
        model = onnx.load(old)
        helper.set_model_props(model, {MERGE: merge})
        found[merge] = tmp_path / f"{merge}.onnx"
        onnx.save(model, found[merge])
    return found


def spec(slices: dict[str, Path], names: str, *options: str) -> AggregatorSpec:
    files = [argument for name in names.split() for argument in ("--slice", str(slices[name]))]
    base = ("--fleet", "orchard", "--state", "state")
    return spec_of(arguments().parse_args([*files, *base, *options]))


@pytest.mark.parametrize(
    ("names", "merge", "because"),
    [
        ("old", "samples", "no slice states a merge"),
        ("old old", "samples", "no slice states a merge"),
        ("samples", "samples", "{samples} states it"),
        ("mean", "mean", "{mean} states it"),
        ("old mean", "mean", "{mean} states it"),
    ],
)
def test_the_default_merge_is_what_the_slices_state(
    slices: dict[str, Path], names: str, merge: str, because: str
) -> None:
    found = spec(slices, names)
    assert (found.settings.merge.name, found.merge_because) == (merge, because.format(**slices))


def test_what_is_given_counts_more(slices: dict[str, Path]) -> None:
    for names in ("mean", "mean samples"):
        found = spec(slices, names, "--merge", "sum")
        assert (found.settings.merge.name, found.merge_because) == ("sum", "it is given")


def test_slices_that_state_different_merges_are_one_sentence(slices: dict[str, Path]) -> None:
    with pytest.raises(SettingsRefused) as caught:
        spec(slices, "samples old mean")
    assert str(caught.value) == (
        f"the slices state different merges ('mean' in {slices['mean']} and 'samples' in "
        f"{slices['samples']}): give --merge."
    )


def test_the_optimizer_follows_the_exchange(slices: dict[str, Path]) -> None:
    momentum = ("--optimizer", "momentum:0.5")
    gradient = ("--exchange", "gradient")
    assert spec(slices, "old").settings.optimizer == Delta()
    assert spec(slices, "old", *gradient).settings.optimizer == SGD(0.01)
    of_deltas = PseudoGradient(Momentum(0.5, 1.0))
    assert spec(slices, "old", *momentum).settings.optimizer == of_deltas
    assert spec(slices, "old", *momentum, *gradient).settings.optimizer == Momentum(0.5, 0.01)
