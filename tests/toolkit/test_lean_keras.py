"""Keras does without packages that it needs for nothing here; everybody else gets them."""

import sys
from pathlib import Path

import pytest

from toolkit import lean_keras
from toolkit.lean_keras import keep_keras_lean


def test_what_keras_does_not_need_is_missing_for_keras_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "galleries.py").write_text("shown = 7\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(lean_keras, "_UNUSED", frozenset({"galleries"}))
    keep_keras_lean()
    keep_keras_lean()
    for name in ("keras", "keras.src.visualization"):
        with pytest.raises(ModuleNotFoundError, match=r"^Keras is loaded without galleries\.$"):
            exec("import galleries", {"__name__": name})
    for name in ("keras_tuner", "toolkit.experiment.figures"):
        found: dict[str, object] = {"__name__": name}
        exec("from galleries import shown", found)
        assert found["shown"] == 7
        monkeypatch.delitem(sys.modules, "galleries")
