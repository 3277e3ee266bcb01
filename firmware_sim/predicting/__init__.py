"""Answers for the application, and what they are worth before the model learns from them."""
