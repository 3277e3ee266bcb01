"""`toolkit bench rl` and `toolkit bench replay`: devices that play and learn."""
