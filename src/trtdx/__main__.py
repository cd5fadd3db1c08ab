"""`python -m trtdx`."""

from trtdx.cli.main import main

if __name__ == "__main__":
    main()
