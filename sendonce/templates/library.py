"""Templates: from a folder of files to the subject, text and HTML of one mail."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sendonce.errors import InvalidEmail, TemplateFault
from sendonce.message import CONTENT_LIMIT, Address, OutgoingEmail
from sendonce.template import Template, known
from sendonce.templates.faults import fault_of
from sendonce.templates.files import HTML, META, SUBJECT, TEXT, Files, normal_locale
from sendonce.templates.html import as_text, inlined
from sendonce.templates.sandbox import Environment, Limit

if TYPE_CHECKING:
    from sendonce.address import AddressList

_META_KEYS = frozenset({"from", "lane", "headers"})


@dataclass(frozen=True, slots=True)
class RenderedTemplate:
    """One template with its parameters filled in."""

    subject: str
    """One line."""
    text: str
    """Made from the HTML where there is no ``body.txt``."""
    html: str | None
    """With its CSS inlined; None where there is no ``body.html``."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Those of ``meta.toml``."""
    sender: Address | None = None
    """``from`` in ``meta.toml``."""

    def __repr__(self) -> str:
        # The content is personal data.
        return "RenderedTemplate(…)"


@dataclass(frozen=True, slots=True)
class _Meta:
    sender: Address | None = None
    lane: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


class Templates:
    """A folder of templates. Threads may share it; files that change on disk are read again at their next use."""

    def __init__(self, folder: str | Path, default_locale: str | None = None) -> None:
        """``default_locale``: a language tag such as ``"en"``, whose files serve locales that have none of their own.

        Raises :class:`~sendonce.errors.ConfigurationError` for a folder that is not there.
        """
        self._files = Files(Path(folder), default_locale)
        self._environment = Environment(self._files)

    def names(self) -> list[str]:
        """Every template in the folder, sorted."""
        return self._files.names()

    def render(
        self, name: str, parameters: Mapping[str, Any] | None = None, locale: str | None = None
    ) -> RenderedTemplate:
        """Fill a template in. The same files and parameters always give the same result.

        Raises :class:`~sendonce.errors.TemplateFault` for a template that is missing, broken, or asks for a parameter
        that is not there.
        """
        tag = self._locale(name, locale)
        self._files.check_name(name, (SUBJECT, TEXT, HTML), tag)
        subject = " ".join((self._filled(name, SUBJECT, parameters, tag) or "").split())
        text = self._filled(name, TEXT, parameters, tag)
        html = self._html(name, parameters, tag)
        if not subject:
            missing = self._files.find(name, SUBJECT, tag) is None
            raise TemplateFault(name, f"{name}/{SUBJECT}", 0, "is missing" if missing else "gives an empty subject")
        if text is None:
            text = self._text_of(name, html, tag)
        if not text.strip() and not html:
            raise TemplateFault(name, f"{name}/{TEXT}", 0, "there is no body: write body.txt, body.html or both")
        meta = self._meta(name, tag)
        return RenderedTemplate(subject, text, html, meta.headers, meta.sender)

    def fill(self, email: OutgoingEmail) -> OutgoingEmail:
        """The mail with the subject, text and HTML that its template makes, marked as rendered, and with the
        template's headers where it has none of that name. A mail without a template, or one that is rendered
        already, comes back as it is.

        Raises :class:`~sendonce.errors.TemplateFault`, and :class:`~sendonce.errors.InvalidEmail` when what came of
        the parameters cannot be sent, such as a subject that is too long.
        """
        if email.template is None or email.rendered:
            return email
        made = self.render(email.template, email.parameters, email.locale)
        return email.model_copy(
            update={
                "subject": made.subject,
                "text": made.text,
                "html": made.html,
                "headers": _merged(made.headers, email.headers),
                "rendered": True,
            }
        )

    def email(
        self,
        name: str | Template,
        *,
        key: str,
        to: AddressList,
        parameters: Mapping[str, Any] | None = None,
        **others: Any,
    ) -> OutgoingEmail:
        """A mail by this template: its name, or its class filled in. ``sender``, ``lane`` and ``headers`` come from
        ``meta.toml`` unless given; the other arguments are those of :class:`~sendonce.message.OutgoingEmail`. Nothing
        is rendered yet.

        Raises :class:`~sendonce.errors.TemplateFault` for a template that is missing or whose ``meta.toml`` is
        broken, and :class:`~sendonce.errors.InvalidEmail`.
        """
        template, name = name, name.template_name if isinstance(name, Template) else name
        tag = self._locale(name, others.get("locale"))
        self._files.check_name(name, (SUBJECT, TEXT, HTML), tag)
        meta = self._meta(name, tag)
        if others.get("sender") is None:
            if meta.sender is None:
                raise InvalidEmail("sender", "is required: give one, or write from = … in the template's meta.toml")
            others["sender"] = meta.sender
        if others.get("lane") is None and meta.lane:
            others["lane"] = meta.lane
        others["headers"] = _merged(meta.headers, others.get("headers") or {})
        return OutgoingEmail(key=key, to=to, template=template, parameters=parameters, **others)

    def sample(self, name: str, locale: str | None = None) -> dict[str, Any]:
        """The sample parameters for a locale: from a file, else from the template's class, if one was defined.

        Raises :class:`~sendonce.errors.TemplateFault` if there are none, or if the class does not take those of the
        file.
        """
        self._files.check_name(name)
        typed = known().get(name)
        found = self._files.sample(name, self._locale(name, locale))
        if typed is None:
            if found is None:
                raise TemplateFault(name, name, 0, "there is no sample: write sample.json with every parameter")
            return found
        try:
            return (typed.sample() if found is None else typed.from_sample(found)).parameters()
        except InvalidEmail as error:
            why = error.reason.removeprefix(f"template {name!r}: ")
        raise TemplateFault(name, name, 0, f"sample for class {typed.__name__}: {why}")

    def check(self) -> list[TemplateFault]:
        """Render every template in every locale with its sample; returns what is wrong, each thing once."""
        faults: dict[tuple[str, str], TemplateFault] = {}
        for name in self.names():
            for locale in (None, *self._files.locales(name)):
                try:
                    self._check(name, locale)
                except TemplateFault as fault:
                    faults.setdefault((fault.template, fault.place), fault)
        return list(faults.values())

    def _check(self, name: str, locale: str | None) -> None:
        if locale is not None and normal_locale(locale) != locale:
            raise TemplateFault(name, f"{name}/{locale}", 0, "is no locale's folder; call it such as de or de-AT")
        if locale is None and not self._files.find(name, SUBJECT, None) and self._files.locales(name):
            raise TemplateFault(
                name, f"{name}/{SUBJECT}", 0, "is missing: other locales have nothing to fall back to; set a default"
            )
        made = self.render(name, self.sample(name, locale), locale)
        try:
            _probe(subject=made.subject)
        except InvalidEmail as error:
            raise TemplateFault(name, f"{name}/{SUBJECT}", 0, f"{error.field}: {error.reason}") from None

    def _locale(self, name: str, locale: str | None) -> str | None:
        tag = None if locale is None else normal_locale(locale)
        if locale is not None and tag is None:
            raise TemplateFault(name, "", 0, 'the locale is no language tag such as "de" or "de-AT"')
        return tag

    def _filled(self, name: str, file: str, parameters: Mapping[str, Any] | None, locale: str | None) -> str | None:
        relative = self._files.find(name, file, locale)
        if relative is None:
            return None
        try:
            return self._rendered(relative, parameters or {})
        except Exception as error:
            fault = fault_of(name, relative, error, self._files)
        # Outside the handler: what jinja raised may quote parameters, and does not go along as context.
        raise fault

    def _rendered(self, relative: str, parameters: Mapping[str, Any]) -> str:
        self._environment.start()
        parts = []
        size = 0
        for part in self._environment.get_template(relative).generate(dict(parameters)):
            size += len(part)
            if size > CONTENT_LIMIT:
                raise Limit(f"gives more than {CONTENT_LIMIT} characters")
            parts.append(part)
        return "".join(parts)

    def _html(self, name: str, parameters: Mapping[str, Any] | None, locale: str | None) -> str | None:
        html = self._filled(name, HTML, parameters, locale)
        if html is None or not html.strip():
            return None
        try:
            return inlined(html)
        except ValueError as error:
            kind = type(error).__name__
        raise TemplateFault(name, self._files.find(name, HTML, locale) or "", 0, f"{kind}: its CSS cannot be inlined")

    def _text_of(self, name: str, html: str | None, locale: str | None) -> str:
        try:
            return as_text(html) if html else ""
        except Exception as error:
            kind = type(error).__name__
        raise TemplateFault(name, self._files.find(name, HTML, locale) or "", 0, f"{kind}: no text can be made of it")

    def _meta(self, name: str, locale: str | None) -> _Meta:
        relative = self._files.find(name, META, locale)
        if relative is None:
            return _Meta()
        table = self._files.table(name, relative)
        unknown = sorted(table.keys() - _META_KEYS)
        if unknown:
            raise TemplateFault(name, relative, 0, f"unknown key {unknown[0]!r}; known are from, headers, lane")
        given: dict[str, Any] = {key: table[key] for key in ("lane", "headers") if key in table}
        if "from" in table:
            given["sender"] = table["from"]
        try:
            checked = _probe(**given)
        except InvalidEmail as error:
            field = "from" if error.field == "sender" else error.field
            raise TemplateFault(name, relative, 0, f"{field}: {error.reason}") from None
        return _Meta(checked.sender if "sender" in given else None, given.get("lane"), checked.headers)


def _probe(**given: Any) -> OutgoingEmail:
    """A mail that is never sent, for its checks."""
    return OutgoingEmail(**{"key": "probe", "sender": "a@example.org", "to": "a@example.org", "text": "-", **given})


def _merged(defaults: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """``own``, and of the defaults those whose names are not in it; names of headers have no case (RFC 5322 1.2.2)."""
    taken = {name.lower() for name in own}
    return {**{name: value for name, value in defaults.items() if name.lower() not in taken}, **own}
