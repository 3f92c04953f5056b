"""Django: ``EMAIL_BACKEND = "sendonce.django.EmailBackend"``, and ``"sendonce.django"`` in ``INSTALLED_APPS``."""

from sendonce.django.backend import EmailBackend

__all__ = ["EmailBackend"]
