"""`python -m ppdbench` and the `ppdbench` command."""

from ppdbench.cli.main import main

if __name__ == "__main__":
    main()
