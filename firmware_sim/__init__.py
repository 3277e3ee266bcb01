"""The device side: runs and trains a bundle in a stock TFLite runtime."""
