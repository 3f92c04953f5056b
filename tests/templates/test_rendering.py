"""What comes of a template: escaping, one-line subjects, locales, layouts, text from HTML, changes on disk."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sendonce.errors import ConfigurationError, TemplateFault
from sendonce.message import Address
from sendonce.templates import RenderedTemplate, Templates

if TYPE_CHECKING:
    from tests.templates.conftest import Write


def test_only_html_is_escaped(folder: Path, write: Write) -> None:
    write("hello", subject="{{ name }}", text="{{ name }}", html="<p>{{ name }}</p>")
    made = Templates(folder).render("hello", {"name": "O'Neil & <b>Söhne</b>"})
    assert made.subject == made.text == "O'Neil & <b>Söhne</b>"
    assert made.html == "<p>O&#39;Neil &amp; &lt;b&gt;Söhne&lt;/b&gt;</p>"


def test_parameters_are_never_executed(folder: Path, write: Write) -> None:
    write("hello", subject="{{ name }}", text="{{ name }}")
    made = Templates(folder).render("hello", {"name": "{{ 7 * 7 }}{% for %}"})
    assert made.subject == made.text == "{{ 7 * 7 }}{% for %}"


def test_a_subject_is_one_line(folder: Path, write: Write) -> None:
    write("hello", subject="\n Order\r\n\t{{ a }}   {{ b }}\n\n", text="x")
    made = Templates(folder).render("hello", {"a": "one\nBcc: eve@example.org", "b": "two\u2028three\x85"})
    assert made.subject == "Order one Bcc: eve@example.org two three"


def test_unicode_stays_as_it_is(folder: Path, write: Write) -> None:
    write("hello", subject="Größe: {{ x }} 🎉", text="日本語 {{ x }}\n", html="<p>العربية {{ x }}</p>")
    made = Templates(folder).render("hello", {"x": "e\u0301 👩‍👩‍👧"})
    assert made == RenderedTemplate(
        "Größe: e\u0301 👩‍👩‍👧 🎉", "日本語 e\u0301 👩‍👩‍👧", "<p>العربية e\u0301 👩‍👩‍👧</p>"
    )


def test_lines_that_hold_only_a_tag_leave_no_trace(folder: Path, write: Write) -> None:
    write(
        "hello",
        subject="s",
        text="You bought:\n{% for x in books %}\n  {% if x %}\n- {{ x }}\n  {% endif %}\n{% endfor %}\nBye",
    )
    assert (
        Templates(folder).render("hello", {"books": ["Emma", "Dracula"]}).text == "You bought:\n- Emma\n- Dracula\nBye"
    )


def test_a_parameters_own_member_wins_over_a_method(folder: Path, write: Write) -> None:
    write("hello", subject="s", text="{{ order.items|join('+') }} {{ order.copy }} {{ order.keys()|list|length }}")
    assert Templates(folder).render("hello", {"order": {"items": ["a", "b"], "copy": 2}}).text == "a+b 2 2"


# Locales ----------------------------------------------------------------------------------------------------------


def test_each_file_falls_back_by_itself(folder: Path, write: Write) -> None:
    write("hello", subject="plain", text="plain", html="plain")
    write("hello/en", subject="en", text="en")
    write("hello/de", subject="de")
    write("hello/de-AT", html="de-AT")
    templates = Templates(folder, default_locale="en")

    def made(locale: str | None) -> tuple[str, str, str | None]:
        found = templates.render("hello", locale=locale)
        return found.subject, found.text, found.html

    assert made("de-AT") == ("de", "en", "de-AT")
    assert made("de") == ("de", "en", "plain")
    assert made("fr") == made("en-GB") == made(None) == ("en", "en", "plain")
    assert made("DE_at") == made("de-AT"), "a tag has no case, and some write _"


@pytest.mark.parametrize("locale", ["../de", "de/..", "", "ann@example.org", "deutsch", "de\n"])
def test_what_is_no_locale_is_refused_without_showing_it(folder: Path, write: Write, locale: str) -> None:
    write("hello", subject="s", text="t")
    with pytest.raises(TemplateFault, match="no language tag") as caught:
        Templates(folder).render("hello", locale=locale)
    assert not locale or locale not in str(caught.value)


def test_a_default_locale_must_be_one(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="default_locale"):
        Templates(folder, default_locale="English")


# Shared files -----------------------------------------------------------------------------------------------------


def test_layouts_and_snippets_are_shared(folder: Path, write: Write) -> None:
    layouts = folder / "_layouts"
    layouts.mkdir()
    (layouts / "mail.html").write_text("<b>{% block content %}{% endblock %}</b>{% include '_layouts/foot.html' %}")
    (layouts / "foot.html").write_text("{{ shop }}")
    (layouts / "money.txt").write_text("{% macro money(x) %}EUR {{ '%.2f' % x }}{% endmacro %}")
    write(
        "shop/order",
        subject="s",
        text="{% from '_layouts/money.txt' import money %}{{ money(price) }}",
        html="{% extends '_layouts/mail.html' %}{% block content %}{{ price }}{% endblock %}",
    )
    templates = Templates(folder)
    made = templates.render("shop/order", {"price": 12.5, "shop": "A&B"})
    assert (made.text, made.html) == ("EUR 12.50", "<b>12.5</b>A&amp;B")
    assert templates.names() == ["shop/order"]


# HTML -------------------------------------------------------------------------------------------------------------


def test_html_alone_gets_a_text(folder: Path, write: Write) -> None:
    write(
        "hello",
        subject="s",
        html=(
            "<style>.hidden { display: none }</style><h1>Hi {{ name }}</h1><p class='hidden'>preview</p>"
            "<p>One<br>two &amp; three</p><ul><li>Emma</li></ul>"
            "<p><a href='https://example.org/?a=1&amp;b=2'>Look</a>, <a href='https://example.org/'>https://example.org/</a></p>"
        ),
    )
    made = Templates(folder).render("hello", {"name": "<Ann>"})
    assert made.text == (
        "Hi <Ann>\n\nOne\ntwo & three\n\n  * Emma\n\n[Look](https://example.org/?a=1&b=2), https://example.org/\n"
    )


def test_text_alone_makes_no_html(folder: Path, write: Write) -> None:
    write("hello", subject="s", text="t")
    assert Templates(folder).render("hello") == RenderedTemplate("s", "t", None)


def test_css_is_inlined_and_media_rules_stay(folder: Path, write: Write) -> None:
    css = "p { color: red } @media (max-width: 600px) { p { color: blue } }"
    write("hello", subject="s", text="t", html=f"<html><head><style>{css}</style></head><body><p>x</p></body></html>")
    html = Templates(folder).render("hello").html
    assert html is not None
    assert '<p style="color: red;">x</p>' in html
    assert "@media (max-width: 600px)" in html


def test_inlining_fetches_nothing_and_opens_no_file(folder: Path, write: Write) -> None:
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"p { color: red }")

    local = folder.parent / "local.css"
    local.write_text("p { color: red }")
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            links = "".join(
                f'<link rel="stylesheet" href="{href}">'
                for href in (f"http://127.0.0.1:{server.server_port}/x.css", local.as_uri(), str(local))
            )
            imported = f"@import url(http://127.0.0.1:{server.server_port}/y.css); b {{ color: green }}"
            write("hello", subject="s", html=f"{links}<style>{imported}</style><p>a <b>x</b></p>")
            html = Templates(folder).render("hello").html
        finally:
            server.shutdown()
    assert asked == []
    assert html is not None
    assert "red" not in html
    assert '<b style="color: green;">' in html


# meta.toml --------------------------------------------------------------------------------------------------------


def test_sender_and_headers_come_with_the_rendering(folder: Path, write: Write) -> None:
    write("hello", subject="s", text="t", meta='from = "Shop <shop@example.org>"\nheaders = { X-Kind = "order" }')
    made = Templates(folder).render("hello")
    assert (made.sender, made.headers) == (Address(email="shop@example.org", name="Shop"), {"X-Kind": "order"})


def test_what_was_rendered_does_not_show_itself(folder: Path, write: Write) -> None:
    write("hello", subject="{{ x }}", text="{{ x }}")
    assert "Ann" not in repr(Templates(folder).render("hello", {"x": "Ann"}))


# Changes on disk and threads --------------------------------------------------------------------------------------


def test_a_change_is_seen_at_the_next_use(folder: Path, write: Write) -> None:
    (folder / "_layouts").mkdir()
    layout = folder / "_layouts" / "l.txt"
    layout.write_text("1")
    path = write("hello", subject="a", text="{% include '_layouts/l.txt' %}")
    templates = Templates(folder)
    assert templates.render("hello").text == "1"
    # The same size at the same time: whoever replaces a file makes a new one.
    stat = layout.stat()
    new = folder / "new"
    new.write_text("2")
    os.utime(new, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    new.replace(layout)
    assert templates.render("hello").text == "2"
    (path / "subject.txt").write_text("{{ broken")
    with pytest.raises(TemplateFault):
        templates.render("hello")
    (path / "subject.txt").write_text("mended")
    assert templates.render("hello").subject == "mended"
    write("hello/de", subject="neu")
    assert templates.render("hello", locale="de").subject == "neu"
    (path / "de" / "subject.txt").unlink()
    assert templates.render("hello", locale="de").subject == "mended"


def test_threads_share_it_and_each_has_its_own_bounds(folder: Path, write: Write) -> None:
    write("hello", subject="{{ n }}", text="{% for i in range(60000) %}{% endfor %}{{ n }}", html="<p>{{ n }}</p>")
    templates = Templates(folder)

    def made(n: int) -> tuple[str, str, str | None]:
        found = templates.render("hello", {"n": n})
        return found.subject, found.text, found.html

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(made, range(40))) == [(str(n), str(n), f"<p>{n}</p>") for n in range(40)]
