"""Without an extra the command says which one to install, and how."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from firmware_sim.errors import TaskError
from firmware_sim.tasks.arrays import read_inputs
from toolkit.errors import MissingExtra


def test_in_a_devices_environment_help_is_one_sentence() -> None:
    code = "import sys; sys.modules['typer'] = None; sys.argv = ['toolkit', '--help']\n"
    code += "from toolkit.start import main; main()"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr == (
        "error: this needs the package typer, which is not installed: "
        "pip install 'stemshare[toolkit]'.\n"
    )
    assert str(MissingExtra("ale_py")).endswith("pip install 'stemshare[games]'.")


def test_calibration_takes_a_devices_own_file(tmp_path: Path) -> None:
    file = tmp_path / "data.npz"
    inputs = np.arange(12, dtype=np.float32).reshape(4, 3)
    for names in (("x_train", "y_train", "x_test", "y_test"), ("images", "labels"), ("x",)):
        np.savez(file, **dict.fromkeys(names[1:], np.zeros(4)), **{names[0]: inputs})
        np.testing.assert_array_equal(read_inputs(file), inputs)
    np.savez(file, other=inputs)
    with pytest.raises(TaskError) as caught:
        read_inputs(file)
    assert str(caught.value) == f"{file} must be an .npz file with the array x."
