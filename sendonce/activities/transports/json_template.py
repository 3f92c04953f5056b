"""The body of a gateway's request, written in the settings as JSON with placeholders.

A string may hold placeholders in braces; ``{{`` and ``}}`` stand for the braces themselves. A string that is nothing
but one placeholder becomes that value, of whatever type; in a longer string only text may stand. What comes out empty
(no Cc, no HTML) is left out of its object or list.

====================================================  ==================================================
placeholder                                           value
====================================================  ==================================================
``subject`` ``text`` ``html``                         text
``from`` ``from.email`` ``from.name``                 ``Name <mailbox>``, and its two halves
``message_id`` ``email_id`` ``key`` ``account``       text; the Message-ID has its angle brackets
``provider_key``                                      the idempotency key, for a provider that wants it in the body
``to`` ``cc`` ``bcc`` ``reply_to``                    lists of ``Name <mailbox>``
``headers`` ``all_headers``                           objects; the second one has the Message-ID in it too
====================================================  ==================================================

An object ``{"$each": "to", "item": …}`` becomes a list with one ``item`` for each element. It takes ``to``, ``cc``,
``bcc``, ``reply_to`` (``item.email``, ``item.name``), ``headers``, ``all_headers`` (``item.name``, ``item.value``) and
``attachments`` (``item.filename``, ``item.content`` in base64, ``item.content_type``, ``item.content_id``,
``item.disposition``: ``attachment`` or ``inline``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sendonce.activities.transports.base import Mail, Recipient
from sendonce.activities.transports.json_fields import all_shown, groups, in_base64, json_bytes, shown
from sendonce.message import Address

_TEXTS = frozenset(
    {"subject", "text", "html", "from", "from.email", "from.name"}
    | {"message_id", "email_id", "key", "account", "provider_key"}
)
_ADDRESS = frozenset({"item.email", "item.name"})
_FIELD = frozenset({"item.name", "item.value"})
_FILE = frozenset({"item.filename", "item.content", "item.content_type", "item.content_id", "item.disposition"})
_EACH = {
    **dict.fromkeys(("to", "cc", "bcc", "reply_to"), _ADDRESS),
    **dict.fromkeys(("headers", "all_headers"), _FIELD),
    "attachments": _FILE,
}
_WHOLE_ONLY = frozenset(_EACH) - {"attachments"}
_TOKEN = re.compile(r"\{\{|\}\}|\{([a-z_.]+)\}|[{}]")


def check_template(template: Any) -> None:
    """Raise ValueError, naming the place, for a template that cannot be filled or that is not JSON."""
    if not isinstance(template, dict) or "$each" in template:
        raise ValueError("body: must be a JSON object")
    _check(template, "body", frozenset())


def _check(node: Any, place: str, items: frozenset[str]) -> None:
    if isinstance(node, str):
        _check_text(node, place, items)
    elif isinstance(node, dict) and "$each" in node:
        source = node["$each"]
        if set(node) != {"$each", "item"} or source not in _EACH or items:
            known = ", ".join(sorted(_EACH))
            raise ValueError(f'{place}: write {{"$each": …, "item": …}} with one of {known}, and not inside another')
        _check(node["item"], f"{place}.item", _EACH[source])
    elif isinstance(node, dict):
        for name, value in node.items():
            if not isinstance(name, str):
                raise ValueError(f"{place}: member names must be strings")  # noqa: TRY004 - pydantic wants ValueError
            _check(value, f"{place}.{name}", items)
    elif isinstance(node, list):
        for index, value in enumerate(node):
            _check(value, f"{place}.{index}", items)
    elif node is not None and not isinstance(node, (bool, int, float)):
        raise ValueError(f"{place}: {type(node).__name__} is not a JSON type")


def _check_text(text: str, place: str, items: frozenset[str]) -> None:
    for token in _TOKEN.finditer(text):
        if token[0] in ("{", "}"):
            raise ValueError(f"{place}: a single brace; write {{{{ or }}}} for the character itself")
        name = token[1]
        if name is None or name in _TEXTS or name in items:
            continue
        if name not in _WHOLE_ONLY:
            raise ValueError(f"{place}: there is no placeholder {{{name}}} here")
        if token[0] != text:
            raise ValueError(f"{place}: {{{name}}} is a list or an object and must stand alone")


def fill_template(template: Any, mail: Mail, recipients: tuple[Recipient, ...], provider_key: str) -> bytes:
    """The request's body as UTF-8 JSON. Only ``recipients`` are named, each once: these lists are the envelope."""
    return json_bytes(_fill(template, _values(mail, recipients, provider_key)))


def _values(mail: Mail, recipients: tuple[Recipient, ...], provider_key: str) -> dict[str, Any]:
    content = mail.content
    values: dict[str, Any] = {
        "subject": content.subject,
        "text": content.text or "",
        "html": content.html or "",
        "from": shown(content.sender),
        "from.email": content.sender.mailbox,
        "from.name": content.sender.name,
        "message_id": mail.message_id,
        "email_id": mail.email_id,
        "key": mail.key,
        "account": mail.account,
        "provider_key": provider_key,
        "headers": content.sent_headers,
        "all_headers": {"Message-ID": mail.message_id, **content.sent_headers},
    }
    envelope = groups(content, recipients)
    for name, addresses in (
        ("to", envelope.to),
        ("cc", envelope.cc),
        ("bcc", envelope.bcc),
        ("reply_to", content.reply_to),
    ):
        values[name] = all_shown(addresses)
        values[f"each:{name}"] = [_halves(address) for address in addresses]
    for name in ("headers", "all_headers"):
        values[f"each:{name}"] = [{"item.name": field, "item.value": text} for field, text in values[name].items()]
    values["each:attachments"] = [
        {
            "item.filename": one.filename,
            "item.content": in_base64(one),
            "item.content_type": one.content_type,
            "item.content_id": one.content_id or "",
            "item.disposition": "inline" if one.inline else "attachment",
        }
        for one in content.attachments
    ]
    return values


def _halves(address: Address) -> dict[str, str]:
    return {"item.email": address.mailbox, "item.name": address.name}


def _fill(node: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(node, str):
        whole = _TOKEN.fullmatch(node)
        if whole is not None and whole[1] is not None:
            return values[whole[1]]
        return _TOKEN.sub(lambda token: token[0][0] if token[1] is None else str(values[token[1]]), node)
    if isinstance(node, list):
        return [value for one in node if not _empty(value := _fill(one, values))]
    if not isinstance(node, dict):
        return node
    if "$each" in node:
        return [_fill(node["item"], {**values, **item}) for item in values[f"each:{node['$each']}"]]
    filled = {name: _fill(value, values) for name, value in node.items()}
    return {name: value for name, value in filled.items() if not _empty(value)}


def _empty(value: Any) -> bool:
    return value in ("", [], {})
