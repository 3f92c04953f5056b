"""A key rule and pages of a Django project; its settings name them by path."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from django.contrib.auth.views import PasswordResetView
from django.core.mail import EmailMessage
from django.http import HttpRequest, HttpResponse
from django.urls import path


def key_of(message: Any) -> str | None:
    """A password reset is told by its token, which is another one in each mail; nothing else has a rule."""
    found = re.search(r"/reset/\w+/([\w-]+)/", str(message.body))
    return "reset-" + hashlib.sha256(found[1].encode()).hexdigest()[:32] if found else None


NOT_CALLABLE = "a string"


def order(request: HttpRequest, number: int) -> HttpResponse:
    """One request, one transaction (ATOMIC_REQUESTS)."""
    key = {"X-Sendonce-Key": f"order-{number}"}
    EmailMessage("Order", "Thank you.", "shop@example.com", ["ann@example.org"], headers=key).send()
    if "fail" in request.GET:
        raise ZeroDivisionError
    return HttpResponse(status=201)


def done(_: HttpRequest, **__: str) -> HttpResponse:
    return HttpResponse()


urlpatterns = [
    path("orders/<int:number>/", order),
    path("reset/", PasswordResetView.as_view(success_url="/done/", extra_email_context={}), name="reset"),
    path("reset/<uidb64>/<token>/", done, name="password_reset_confirm"),
    path("done/", done, name="password_reset_done"),
]
