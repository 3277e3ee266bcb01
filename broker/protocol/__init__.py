"""What is said: slices, topics, messages, their encoding, and how they are cut into parts."""
