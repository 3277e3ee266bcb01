"""Which tensors of a branch train: update plans, and what each tensor is worth and costs."""
