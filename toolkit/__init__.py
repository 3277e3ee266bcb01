"""Turns Keras branches into bundles that train on the stock TFLite runtimes."""
