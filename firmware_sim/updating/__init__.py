"""Packs that come over the broker: fetched, tried for a round, kept or rolled back."""
