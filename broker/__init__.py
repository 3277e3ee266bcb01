"""The protocol of a fleet, its transport, merging, the aggregator and brokers to run."""
