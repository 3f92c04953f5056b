"""``[temporal] payload_codec``: whoever encrypts what Temporal gets brings their own codec."""

from __future__ import annotations

from importlib import import_module

from temporalio.converter import PayloadCodec

from sendonce.errors import ConfigurationError


def load_codec(source: str, path: str | None) -> PayloadCodec | None:
    """What the factory ``module:name`` returns; None when there is none.

    Raises :class:`~sendonce.errors.ConfigurationError` when it cannot be imported or called, or returns something else.
    """
    if path is None:
        return None
    module, _, name = path.partition(":")
    where = f"{source}: [temporal] payload_codec = {path!r}"
    try:
        factory = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"{where} cannot be imported ({type(error).__name__}: {error}); write module:function, with the module on "
            "Python's path"
        ) from None
    try:
        codec = factory()
    except Exception as error:
        # Without its text: it may quote the key.
        raise ConfigurationError(f"{where} raised {type(error).__name__} when it was called") from None
    if not isinstance(codec, PayloadCodec):
        raise ConfigurationError(
            f"{where} returned {type(codec).__name__}; it must be a temporalio.converter.PayloadCodec"
        )
    return codec
