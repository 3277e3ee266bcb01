"""What the operator of a fleet asks a device to do, and what of it is kept."""
