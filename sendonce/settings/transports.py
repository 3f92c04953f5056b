"""Which transports an account may name: the ones that come along, and those other packages register."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from pydantic import BaseModel

from sendonce.errors import ConfigurationError

GROUP = "sendonce.transports"
"""The entry point group in which other packages register a transport: a class that is made from its settings, with
its pydantic model of them as the class attribute ``settings_model``."""

ACCOUNT_KEYS = ("transport", "webhook", "fallback", "rates", "domains")
"""Keys of an account that are not its transport's, which therefore has no setting of such a name."""

BUILT_IN: dict[str, tuple[str, str, str]] = {
    "smtp": ("sendonce.activities.transports.smtp", "SmtpTransport", "SmtpSettings"),
    "http": ("sendonce.activities.transports.http", "GatewayTransport", "GatewaySettings"),
    "resend": ("sendonce.activities.transports.resend", "ResendTransport", "ResendSettings"),
    "postmark": ("sendonce.activities.transports.postmark", "PostmarkTransport", "PostmarkSettings"),
    "brevo": ("sendonce.activities.transports.brevo", "BrevoTransport", "BrevoSettings"),
    "ses": ("sendonce.activities.transports.ses", "SesTransport", "SesSettings"),
    "sendgrid": ("sendonce.activities.transports.sendgrid", "SendGridTransport", "SendGridSettings"),
    "mailgun": ("sendonce.activities.transports.mailgun", "MailgunTransport", "MailgunSettings"),
    "sparkpost": ("sendonce.activities.transports.sparkpost", "SparkPostTransport", "SparkPostSettings"),
    "lettermint": ("sendonce.activities.transports.lettermint", "LettermintTransport", "LettermintSettings"),
    "ahasend": ("sendonce.activities.transports.ahasend", "AhaSendTransport", "AhaSendSettings"),
    "mailjet": ("sendonce.activities.transports.mailjet", "MailjetTransport", "MailjetSettings"),
    "azure": ("sendonce.activities.transports.azure", "AzureTransport", "AzureSettings"),
}
"""Those that come along: module, class, and model of the settings, by the name that an account gives."""

_METHODS = ("slot", "render", "transmit", "close")
_PROPERTIES = ("capability", "identity", "settings_digest", "key_window")
"""What makes a class a :class:`~sendonce.activities.transports.base.Transport`."""


def find(name: str) -> tuple[type[Any], type[BaseModel]]:
    """The transport's class and the model of its settings. Raises ConfigurationError for an unknown name, and for a
    registered class that cannot be one.
    """
    if name in BUILT_IN:
        # Imported where needed: a command that sends nothing loads no mail or HTTP client.
        place, transport, settings = BUILT_IN[name]
        module = import_module(place)
        return getattr(module, transport), getattr(module, settings)
    point = _registered(name)
    try:
        factory = point.load()
    except (Exception, SystemExit) as error:
        raise ConfigurationError(
            f"{point.value} cannot be loaded ({_why(error)}); its package must be repaired"
        ) from None
    model: Any = getattr(factory, "settings_model", None)
    lacking = [] if isinstance(model, type) and issubclass(model, BaseModel) else ["settings_model, a pydantic model"]
    lacking += [method for method in _METHODS if not callable(getattr(factory, method, None))]
    if not isinstance(factory, type) or lacking:
        what = f"it lacks {', '.join(lacking)}" if lacking else "it is no class"
        raise ConfigurationError(
            f"{point.value} is no transport: {what}; derive it from "
            "sendonce.transport.SimpleTransport, or keep to all of sendonce.activities.transports.base.Transport"
        )
    if taken := sorted(model.model_fields.keys() & set(ACCOUNT_KEYS)):
        raise ConfigurationError(f"{point.value}: settings_model must not have {', '.join(taken)}: every account has")
    if abstract := sorted(getattr(factory, "__abstractmethods__", ())):
        raise ConfigurationError(f"{point.value} lacks {', '.join(abstract)}; its package must be repaired")
    return factory, model


def build(name: str, factory: type[Any], options: BaseModel) -> Any:
    """The transport, made from its settings. Raises OSError for a file that cannot be read, and ConfigurationError for
    a registered class that cannot be made or does not keep the contract; nothing is shown of what it raised.
    """
    if name in BUILT_IN:
        return factory(options)
    what = _registered(name).value
    try:
        built = factory(options)
        wrong = _wrong(built)
    except ConfigurationError as error:
        raise ConfigurationError(f"transport {name!r} ({what}): {error}") from None
    except Exception as error:
        if isinstance(error, OSError) and error.strerror:
            raise
        raise ConfigurationError(
            f"transport {name!r} ({what}) cannot be made ({_why(error)}); its package must be repaired"
        ) from None
    if wrong:
        raise ConfigurationError(f"transport {name!r} ({what}): {wrong}; its package must be repaired")
    return built


def _wrong(built: Any) -> str:
    """What makes it no transport; whatever reading its properties raises is for the caller."""
    from sendonce.activities.transports.base import Capability

    if lacking := [name for name in _PROPERTIES if not hasattr(built, name)]:
        return f"it lacks {', '.join(lacking)}"
    window = built.key_window
    if not isinstance(built.capability, Capability):
        return "capability must be a Capability"
    if not (isinstance(built.identity, str) and 1 <= len(built.identity) <= 200):
        return "identity must be a text of 1 to 200 characters"
    if not isinstance(built.settings_digest, str):
        return "settings_digest must be a text"
    if window is not None and not (isinstance(window, (int, float)) and 0 < window < float("inf")):
        return "key_window must be None or seconds"
    return ""


def _registered(name: str) -> EntryPoint:
    registered: dict[str, EntryPoint] = {}
    for point in entry_points(group=GROUP):
        other = registered.setdefault(point.name, point)
        if point.name == name and other.value != point.value:
            raise ConfigurationError(
                f"transport {name!r} is registered twice, by {other.value} and {point.value}; uninstall one of them"
            )
    if name not in registered:
        known = ", ".join([*BUILT_IN, *sorted(set(registered) - set(BUILT_IN))])
        raise ConfigurationError(f"there is no transport {name!r}; known are {known}")
    return registered[name]


def _why(error: BaseException) -> str:
    """Type and place; of a missing module its name."""
    from sendonce.activities.transports.simple_contract import place_of

    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    return f"there is no module {missing}" if missing else place_of(error)
