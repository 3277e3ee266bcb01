"""The command `toolkit`: one module for each of its commands, put together in cli.py."""
