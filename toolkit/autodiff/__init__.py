"""A small reverse-mode autodiff whose every operation is a TFLite builtin.

A Keras model is traced once into a `Program` (trace.py), a plain list of operations. `run`
replays the program on TensorFlow tensors through one rule per operation (rules/), and the
tape that it returns yields gradients. Nothing else is differentiated, so an operation
without a rule is refused by the name of its layer long before the converter sees it.
"""

from toolkit.autodiff.program import Node, Program, Value
from toolkit.autodiff.tape import Tape, run
from toolkit.autodiff.trace import trace

__all__ = ["Node", "Program", "Tape", "Value", "run", "trace"]
