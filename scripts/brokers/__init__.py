"""`make brokers`: one scenario with real processes on every broker that can be installed here."""
