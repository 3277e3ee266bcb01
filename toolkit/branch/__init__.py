"""The branch: a Keras model, the layers that it shares, and how it learns.

A user's own network imports its classes from here: `from toolkit.branch import Branch`.
"""

from toolkit.branch.branch import Branch
from toolkit.branch.layers import BranchDropout
from toolkit.branch.learning import DoubleQ, Supervised
from toolkit.branch.optimizers import SGD, Adam, AdamW, RMSProp

__all__ = ["SGD", "Adam", "AdamW", "Branch", "BranchDropout", "DoubleQ", "RMSProp", "Supervised"]
