"""What can be seen of a fleet from outside: a pure model, and what feeds it."""
