"""Whole fleets on one machine, in one process or in several."""
