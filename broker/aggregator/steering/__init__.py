"""What the operator of a fleet asks the aggregator to do."""
