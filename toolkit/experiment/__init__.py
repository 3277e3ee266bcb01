"""Studies: their cells, how one is run, its results, and the figures made of them."""
