"""A small shop that sends its mail with Sendonce. Begin with `shop.py`."""
