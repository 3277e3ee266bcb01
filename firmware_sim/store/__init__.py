"""The examples that a device keeps: bounded, crash-safe, and chosen by a policy."""
