"""`python -m presage` is the `presage` command."""

from presage.cli.main import main

if __name__ == "__main__":
    main()
