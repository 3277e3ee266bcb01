"""`toolkit bench step`: one training step, by TensorFlow, PyTorch, Flex and builtin operations."""
