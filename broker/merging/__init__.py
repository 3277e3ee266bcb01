"""How updates become one change: the arithmetic, and the coordinators of algorithms 2 and 3."""
