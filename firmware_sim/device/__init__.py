"""The device agent: takes part in a fleet, or trains alone."""
