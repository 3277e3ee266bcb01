"""`python -m toolkit`: the same as the command `toolkit`."""

from toolkit.start import main

if __name__ == "__main__":
    main()
