"""Brokers to run: one that needs no installation, and mosquitto as a child process."""
