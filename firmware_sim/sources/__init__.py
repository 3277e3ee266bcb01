"""Where a device's examples come from while it runs."""
