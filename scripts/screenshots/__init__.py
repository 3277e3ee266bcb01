"""`python -m scripts.screenshots`: the pictures of docs/dashboard.md, of a real fleet."""
