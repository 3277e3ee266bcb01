"""Studies of devices that learn from labelled examples."""
