"""The training module of a branch: its variables and the signatures of `model.tflite`."""
