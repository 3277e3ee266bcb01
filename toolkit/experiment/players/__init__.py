"""Studies of devices that learn to play."""
