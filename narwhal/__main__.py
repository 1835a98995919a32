"""`python -m narwhal` is the `narwhal` executable."""

from narwhal.cli import main

if __name__ == "__main__":
    main()
