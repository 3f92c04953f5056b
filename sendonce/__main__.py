"""``python -m sendonce``: the command line."""

from sendonce.cli import main

main()
