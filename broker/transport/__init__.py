"""What moves packets: MQTT, memory, a simulated link; and the channel that carries messages."""
