"""What providers report back over HTTP: an ASGI app with one path per account, and one module per provider.

:mod:`~sendonce.webhooks.app` receives, the provider's module proves who wrote and reads it into
:class:`~sendonce.events.Event`, and an injected callable keeps it. Needs the extra ``webhooks`` (Starlette, uvicorn,
cryptography); nothing here is imported by the rest of the package before it is asked for.
"""
