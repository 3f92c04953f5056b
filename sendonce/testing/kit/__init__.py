"""The test kit for applications: what the fixtures of :mod:`sendonce.testing.plugin` are made of."""
