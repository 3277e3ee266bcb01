"""A device that learns from a stream: kills, a million observations, and answers meanwhile."""
