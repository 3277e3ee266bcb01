"""Which setting suits a user's two networks and data: a short study, and what it says."""
