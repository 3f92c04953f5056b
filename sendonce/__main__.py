"""``python -m sendonce``: the command line."""

from sendonce.cli import process

process()
