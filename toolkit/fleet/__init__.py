"""Whole fleets on one machine: real brokers, aggregators and devices, each its own process."""
