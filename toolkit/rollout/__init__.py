"""A new pack for devices that run: wave by wave, over the broker."""
