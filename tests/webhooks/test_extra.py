"""Without the extra the rest works, and a webhook says what to install."""

from __future__ import annotations

import subprocess
import sys

import pytest

WITHOUT = """
import sys
for name in ("starlette", "uvicorn", "cryptography"):
    sys.modules[name] = None
from pydantic import SecretStr
from sendonce.errors import ConfigurationError
from sendonce.webhooks.registry import PROVIDERS, make_receiver
from sendonce.webhooks.settings import WebhookSettings
settings = WebhookSettings(secret=SecretStr("whsec_" + "A" * 32), topics=("arn:aws:sns:eu-west-1:123456789012:t",))
for provider in PROVIDERS:
    try:
        print(provider, make_receiver(provider, settings).source)
    except ConfigurationError as error:
        print(error)
"""


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_needs_no_cryptography_is_made_without_it() -> None:
    said = run(WITHOUT).splitlines()
    assert "resend webhook:resend" in said
    assert "webhook of sendgrid: install the extra: pip install 'sendonce[webhooks]'" in said
    assert "webhook of ses: install the extra: pip install 'sendonce[webhooks]'" in said


@pytest.mark.parametrize("module", ["sendonce", "sendonce.worker", "sendonce.webhooks.settings"])
def test_nothing_else_loads_it(module: str) -> None:
    loaded = f"import sys, {module}\nprint(sorted({{'starlette', 'uvicorn', 'cryptography'}} & set(sys.modules)))"
    assert run(loaded) == "[]\n"
