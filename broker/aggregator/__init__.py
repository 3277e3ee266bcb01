"""The aggregator service: checks updates, keeps what it promised, and answers devices."""
