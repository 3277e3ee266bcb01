"""Studies: cells, how one is run, results, and the figures made of them.

What only images need is called `supervised_…`, what only players need `rl_…`; all else is common.
"""
