"""How updates become one change of θ_shared: arithmetic, and coordinators (algorithms 2, 3)."""
