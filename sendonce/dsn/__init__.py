"""Delivery status notifications: what mail servers say of a mail after they accepted it.

``parse`` reads the bytes, ``proof`` tells ours from forged ones, ``reader`` makes events of them; ``sources`` and
``lmtp`` are the ways in, and ``run`` puts them together for the command ``sendonce dsn``.
"""
