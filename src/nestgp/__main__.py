"""`python -m nestgp` is the `nestgp` command."""

from nestgp.cli import main

if __name__ == "__main__":
    main()
