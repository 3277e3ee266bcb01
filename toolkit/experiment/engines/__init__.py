"""The model that a device of a study trains, run by TensorFlow or by the device's own runtime."""
