"""Reinforcement learning: double Q-learning, its replay memory, and the games."""
