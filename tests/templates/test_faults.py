"""Templates that are missing, broken or hostile: one fault each, with its place, and nothing of the parameters."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sendonce.errors import ConfigurationError, SendonceError, TemplateFault
from sendonce.message import CONTENT_LIMIT
from sendonce.templates import Templates

if TYPE_CHECKING:
    from tests.templates.conftest import Write

SECRET = "annsecret"


def fault(folder: Path, name: str = "hello", locale: str | None = None) -> TemplateFault:
    with pytest.raises(TemplateFault) as caught:
        Templates(folder).render(name, {"p": {"items": [1]}, "q": SECRET, "n": 7, "deep": [SECRET]}, locale)
    shown = "".join(traceback.format_exception(caught.value))
    assert SECRET not in shown
    return caught.value


@pytest.mark.parametrize(
    ("source", "line", "why"),
    [
        ("a\n\nb {{ nmae }}", 3, "UndefinedError: 'nmae' is not given"),
        ("{{ p.nope }}", 1, "UndefinedError: 'nope' is not given"),
        ("{{ nmae.x }}", 1, "UndefinedError: 'nmae' is not given"),
        ("{% if nmae %}{% endif %}", 1, "UndefinedError: 'nmae' is not given"),
        ("{{ p[q] }}", 1, "UndefinedError"),
        ("{{ (q ~ 1)|int + q }}", 1, "TypeError"),
        ("\n{{ q|nofilter }}", 2, "TemplateAssertionError: No filter named 'nofilter'."),
        ("{% if %}", 1, "TemplateSyntaxError: Expected an expression, got 'end of statement block'"),
        ("x\n{% include '_layouts/none.html' %}", 2, "TemplateNotFound: '_layouts/none.html'"),
        ("{% extends '_layouts/none.html' %}", 1, "TemplateNotFound: '_layouts/none.html'"),
        ("{% include q %}", 1, "TemplateNotFound"),
        ("{{ none }}", 1, 'a value is null; write {{ … or "" }} where that is meant'),
        ("{{ p.get }}", 1, "a function is shown; call it with ()"),
        ("{{ 1 / 0 }}", 1, "ZeroDivisionError"),
    ],
)
def test_a_fault_names_file_line_and_reason(folder: Path, write: Write, source: str, line: int, why: str) -> None:
    write("hello", subject="s", text=source)
    found = fault(folder)
    assert isinstance(found, SendonceError)
    assert found.__context__ is None, "what Jinja raised may quote parameters"
    assert (found.template, found.file, found.line, found.why) == ("hello", "hello/body.txt", line, why)
    assert found.place == f"hello/body.txt:{line}: {why}"
    assert "'hello'" in str(found)
    assert found.place in str(found)


def test_a_fault_in_a_layout_names_the_layout(folder: Path, write: Write) -> None:
    (folder / "_layouts").mkdir()
    (folder / "_layouts" / "l.html").write_text("<p>\n{{ nmae }}</p>{% block b %}{% endblock %}")
    write("hello", subject="s", html="{% extends '_layouts/l.html' %}")
    assert fault(folder).place == "_layouts/l.html:2: UndefinedError: 'nmae' is not given"
    (folder / "_layouts" / "l.html").write_text("<p>\n{% endif %}")
    assert fault(folder).place.startswith("_layouts/l.html:2: TemplateSyntaxError: ")


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ p['__class__'] }}",
        "{{ p|attr('__class__') }}",
        "{{ p|map(attribute='__class__')|first }}",
        "{{ self.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ '{0.__class__}'.format(p) }}",
        "{{ '{x.__class__}'.format_map({'x': p}) }}",
        "{{ ['{0.__class__}'.format]|map('call', p)|list }}",
        "{{ p.update({'a': 1}) }}",
        "{{ p['items'].append(1) }}",
        "{{ p.clear() }}",
        "{% set x = p.get.__self__ %}{{ x }}",
        "{% import 'os' as os %}{{ os }}",
        "{{ lipsum() }}",
        "{{ [1, 2]|random }}",
    ],
)
def test_the_sandbox_holds(folder: Path, write: Write, source: str) -> None:
    write("hello", subject="s", text=source)
    assert fault(folder).file == "hello/body.txt"


ROUNDS = "more than 100000 rounds of range()"
PRODUCT = "a product longer than 100000"
FORMAT = "a format that is too wide"
WIDTH = "a width beyond 100000"


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("{% for i in range(10**12) %}{{ i }}{% endfor %}", ROUNDS),
        ("{% for i in range(0, -(10**12), -1) %}{% endfor %}", ROUNDS),
        ("{% for i in range(1000) %}{% for j in range(1000) %}{% endfor %}{% endfor %}", ROUNDS),
        ("{% for i in range(100) %}{% include 'hello/part.txt' %}{% endfor %}", ROUNDS),
        ("{{ 'a' * 10**9 }}", PRODUCT),
        ("{{ 10**9 * [1] }}", PRODUCT),
        ("{{ 9 ** (9 ** 9) }}", "an exponent that is too large"),
        ("{{ 9 ** 99 ** 99 }}", "a number that is too large"),
        ("{{ '%999999999d' % n }}", FORMAT),
        ("{{ '%*d' % (999999999, n) }}", FORMAT),
        ("{{ '%999999999d'|format(n) }}", FORMAT),
        ("{{ '{:999999999}'.format(n) }}", FORMAT),
        ("{{ '{:{}}'.format(n, 999999999) }}", FORMAT),
        ("{{ 'a'|center(10**9) }}", WIDTH),
        ("{{ 'a'|indent(width=10**9, first=true) }}", WIDTH),
        ("{{ 'a'.ljust(10**9) }}", WIDTH),
        ("{{ [1]|batch(10**9, 'x')|list }}", WIDTH),
        ("{{ [1]|slice(10**9)|list }}", WIDTH),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "RecursionError"),
        ("{% include 'hello/body.txt' %}", "RecursionError"),
        ("{% for i in range(1000) %}{{ 'a' * 90000 }}{% endfor %}", f"gives more than {CONTENT_LIMIT} characters"),
    ],
)
@pytest.mark.timeout(20)
def test_what_would_run_or_grow_for_ever_is_stopped(folder: Path, write: Write, source: str, why: str) -> None:
    (write("hello", subject="s", text=source) / "part.txt").write_text("{% for i in range(2000) %}{% endfor %}")
    assert fault(folder).why == why


def test_ordinary_loops_and_formats_are_within_the_bounds(folder: Path, write: Write) -> None:
    source = "{% for i in range(1, 4) %}{{ '%5.2f' % i }}{{ '{:,}'.format(1000000 * i) }}{{ '-' * 3 }}{% endfor %}"
    write("hello", subject="s", text=source + "{{ 2**10 }}")
    expected = " 1.001,000,000--- 2.002,000,000--- 3.003,000,000---1024"
    assert Templates(folder).render("hello").text == expected


# Names and paths --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "../hello",
        "hello/../hello",
        "/etc",
        "",
        "Hello",
        "a b",
        "a//b",
        "hello/",
        "_layouts",
        "x" * 201,
        "héllo",
        "hello\n",
    ],
)
def test_what_is_no_name_is_refused_without_showing_it(folder: Path, write: Write, name: str) -> None:
    write("hello", subject="s", text="t")
    write("_layouts", subject="s", text="t")
    found = fault(folder, name)
    assert found.why == "the name must be 1 to 200 of a-z 0-9 _ -, with / for folders"
    assert found.template == "?"


def test_a_missing_template_is_a_fault_that_names_the_closest(folder: Path, write: Write) -> None:
    write("order_confirmation", subject="s", text="t")
    assert fault(folder, "order_confirmatoin").why == "there is no such template; did you mean 'order_confirmation'?"
    assert fault(folder, "reset").why == "there is no such template"


@pytest.mark.parametrize(
    "path", ["../outside.txt", "/etc/passwd", "hello/../../outside.txt", "hello/.hidden", "./x.txt"]
)
def test_nothing_outside_the_folder_is_read(folder: Path, write: Write, path: str) -> None:
    (folder.parent / "outside.txt").write_text("outside")
    (write("hello", subject="s", text=f"{{% include '{path}' %}}") / ".hidden").write_text("hidden")
    assert fault(folder).why.startswith("TemplateNotFound")


def test_a_link_does_not_lead_out_of_the_folder(folder: Path, write: Write) -> None:
    (folder.parent / "outside.txt").write_text("outside")
    path = write("hello", subject="s", text="t")
    (path / "real.txt").write_text("inside")
    (path / "body.txt").unlink()
    (path / "body.txt").symlink_to(path / "real.txt")
    assert Templates(folder).render("hello").text == "inside"
    (path / "body.txt").unlink()
    (path / "body.txt").symlink_to(folder.parent / "outside.txt")
    assert fault(folder).why == "there is no body: write body.txt, body.html or both"


def test_a_folder_that_is_not_there_is_a_configuration_error(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"not there: .*nowhere"):
        Templates(folder / "nowhere")


# Files ------------------------------------------------------------------------------------------------------------


def test_a_subject_is_required(folder: Path, write: Write) -> None:
    write("hello", text="t")
    assert fault(folder).place == "hello/subject.txt: is missing"
    write("hello", subject="\n{# nothing #}\n")
    assert fault(folder).place == "hello/subject.txt: gives an empty subject"


def test_a_body_is_required(folder: Path, write: Write) -> None:
    write("hello", subject="s")
    assert fault(folder).place == "hello/body.txt: there is no body: write body.txt, body.html or both"
    write("hello", text="\n")
    assert fault(folder).place == "hello/body.txt: there is no body: write body.txt, body.html or both"


def test_a_file_that_is_not_utf_8(folder: Path, write: Write) -> None:
    (write("hello", subject="s") / "body.txt").write_bytes("é".encode("latin-1"))
    assert fault(folder).place == "hello/body.txt:1: TemplateSyntaxError: is not UTF-8"


@pytest.mark.parametrize(
    ("meta", "place"),
    [
        ("from = ", "hello/meta.toml:1: is not valid TOML"),
        ('form = "a@example.org"', "hello/meta.toml: unknown key 'form'; known are from, headers, lane"),
        ('from = "nobody"', "hello/meta.toml: from: "),
        ('lane = "A lane"', "hello/meta.toml: lane: must be 1 to 50 characters"),
        ('headers = { To = "x" }', "hello/meta.toml: headers: "),
        ('headers = { X-A = "x\\ny" }', "hello/meta.toml: headers: "),
        ("headers = 3", "hello/meta.toml: headers: "),
    ],
)
def test_a_broken_meta_file(folder: Path, write: Write, meta: str, place: str) -> None:
    write("hello", subject="s", text="t", meta=meta)
    assert fault(folder).place.startswith(place)
