"""`python -m toolkit`: the same as the command `toolkit`."""

from toolkit.commands.cli import main

if __name__ == "__main__":
    main()
