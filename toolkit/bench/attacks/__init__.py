"""What lying devices cost a fleet, attack by attack and defence by defence."""
