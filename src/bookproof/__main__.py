"""`python -m bookproof` is the command `bookproof`."""

from bookproof.cli import main

if __name__ == "__main__":
    main()
