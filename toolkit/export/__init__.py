"""Branch → bundle, in named stages."""
