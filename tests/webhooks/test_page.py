"""docs/webhooks.md says what the code does."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from pydantic import SecretStr

from sendonce.errors import ConfigurationError
from sendonce.webhooks.app import BODY_LIMIT
from sendonce.webhooks.registry import PROVIDERS, make_receiver
from sendonce.webhooks.settings import WebhookSettings

PAGE = (Path(__file__).parents[2] / "docs" / "webhooks.md").read_text(encoding="utf-8")


def column(heading: str) -> list[str]:
    """The first cells of the table under a heading, without code marks."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = [line.split("|")[1].strip().strip("`") for line in section.splitlines() if line.startswith("|")]
    return rows[2:]


def test_its_keys_are_the_settings() -> None:
    assert column("Settings") == list(WebhookSettings.model_fields)


def test_its_providers_are_those_that_are_known() -> None:
    shown = [row for row in column("Providers") if row in PROVIDERS]
    assert sorted(shown) == list(PROVIDERS)


@pytest.mark.parametrize("block", re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL))
def test_its_examples_make_a_webhook(block: str) -> None:
    (account,) = tomllib.loads(block)["accounts"].values()
    webhook = account.pop("webhook")
    if "secret_env" in webhook:
        del webhook["secret_env"]
        webhook["secret"] = SecretStr("whsec_" + "A" * 32)
    assert make_receiver(account["transport"], WebhookSettings.model_validate(webhook)).source.startswith("webhook:")
    with pytest.raises(ConfigurationError):
        make_receiver(account["transport"], WebhookSettings())


def test_its_numbers() -> None:
    assert f"{BODY_LIMIT // 1024 // 1024} MiB" in PAGE
    hours = {"ses": 2, "mailgun": 12, "sendgrid": 25}
    assert "2 hours at SES, 12 at Mailgun, 25 at SendGrid" in PAGE
    secret = (
        "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE83T4O/n84iotIvIW4mdBgQ/7dAfSmpqIM8kF9mN1flpVKS3GRqe62gw+2fNNRaINXvVpigl"
    )
    settings = WebhookSettings(
        secret=SecretStr(f"{secret}SI8eNEc6wEA3F+g=="), topics=("arn:aws:sns:eu-west-1:123456789012:t",)
    )
    for provider in set(PROVIDERS) - {"resend", "postmark", "brevo", "mailjet", "sparkpost", "azure"}:
        assert make_receiver(provider, settings).seconds == hours.get(provider, 1 / 12) * 3600
