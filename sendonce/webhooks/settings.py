"""``[accounts.<name>.webhook]``: how an account knows that its provider wrote."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator


class WebhookSettings(BaseModel):
    """One account's webhook. Which keys it needs depends on the provider; docs/webhooks.md has them all.

    Raises pydantic's ValidationError, which never shows a value, for what cannot work.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, hide_input_in_errors=True, use_attribute_docstrings=True
    )

    provider: str | None = Field(default=None, pattern=r"^[a-z][a-z0-9_]{0,29}$")
    """Whose webhook it is. Default: the account's transport; to be given where mail goes to a provider by SMTP."""
    secret: SecretStr | None = None
    """What the provider signs with (SendGrid: its public key), or the shared secret that it sends along."""
    previous_secret: SecretStr | None = None
    """The one before, accepted too while it is being replaced."""
    topics: tuple[str, ...] = Field(default=(), strict=False)
    """Amazon SES: the SNS topics whose messages are taken. Anybody can point a topic of their own at your URL, and
    Amazon signs that too."""
    tolerance_seconds: float | None = Field(default=None, ge=1, le=604800)
    """How old a signature may be. 1 to 604800. Default: the provider's, long enough for its own retries."""

    @field_validator("topics")
    @classmethod
    def _topic_names(cls, topics: tuple[str, ...]) -> tuple[str, ...]:
        for topic in topics:
            parts = topic.split(":")
            if len(parts) != 6 or parts[0] != "arn" or parts[2] != "sns" or not all(parts):
                raise ValueError("write whole ARNs of topics, such as arn:aws:sns:eu-west-1:123456789012:mail-events")
        return topics

    @field_validator("secret", "previous_secret")
    @classmethod
    def _not_empty(cls, secret: SecretStr | None) -> SecretStr | None:
        if secret is not None and not secret.get_secret_value().strip():
            raise ValueError("is empty; was it copied whole?")
        return secret

    @property
    def secrets(self) -> tuple[str, ...]:
        """Those that are set, the present one first, without white space around them."""
        given = (self.secret, self.previous_secret)
        return tuple(one.get_secret_value().strip() for one in given if one is not None)
