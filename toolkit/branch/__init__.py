"""The branch: a Keras model, what it shares, and how it learns."""
