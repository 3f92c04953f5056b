"""Servers that play mail providers on loopback, well-behaved or not: for ``sendonce up``, the demo and tests."""
