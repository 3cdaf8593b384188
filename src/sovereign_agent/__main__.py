"""`python -m sovereign_agent`: the same command as `sovereign-agent`."""

from .cli import main

if __name__ == "__main__":
    main()
