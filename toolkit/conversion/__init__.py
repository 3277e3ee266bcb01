"""From TensorFlow functions to a TFLite file: the converter, then our passes over its output."""
