"""From TensorFlow functions to a TFLite file: the converter, then our passes over its output.

convert.py is the way in; flatbuffer.py reads a model, passes/ change it, packing.py writes it.
"""
