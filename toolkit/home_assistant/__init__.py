"""A fleet in Home Assistant: discovery, states and a switch that pauses a device."""
