"""The aggregator service: checks updates, makes them durable, merges them, answers devices."""
