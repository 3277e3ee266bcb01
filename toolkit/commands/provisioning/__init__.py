"""The commands that provision a fleet: `toolkit provision` and `toolkit pack`."""
