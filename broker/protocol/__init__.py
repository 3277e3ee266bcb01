"""What a fleet exchanges: slices, topics, messages, their encoding, and their parts."""
