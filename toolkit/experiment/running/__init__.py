"""Runs the cells of a study with the product's own agents, and keeps their results."""
