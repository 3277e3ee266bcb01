"""The commands for what a device or a fleet has learnt."""
