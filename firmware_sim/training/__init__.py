"""Training in a TFLite runtime: steps, rounds, checkpoints, and the limits that they keep."""
