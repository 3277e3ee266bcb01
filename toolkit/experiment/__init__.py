"""The supervised study: cells, how one is run, results, and the figures made of them."""
