"""Which formulation of a layer is fastest in a runtime, by measuring all of them there.

layers.py finds a branch's layers, candidates.py writes each of them in every formulation,
`firmware_sim.tune` times those on a device, and files.py reads what it found.
"""
