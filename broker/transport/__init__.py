"""How packets move: over MQTT, in memory, over a simulated link; and messages over them."""
