"""Every template in every locale with its sample."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sendonce.errors import TemplateFault
from sendonce.templates import Templates

if TYPE_CHECKING:
    from tests.templates.conftest import Write


def places(folder: Path, default_locale: str | None = None) -> list[str]:
    return [fault.place for fault in Templates(folder, default_locale).check()]


def test_a_folder_in_order_has_no_faults(folder: Path, write: Write) -> None:
    write("hello", subject="{{ x }}", text="{{ x }}", sample='{"x": 1}')
    write("hello/de", subject="{{ x }} {{ y }}", sample='{"x": 1, "y": 2}')
    (write("shop/order", subject="{{ x.y }}", text="t") / "sample.toml").write_text("[x]\ny = 1")
    (folder / ".git").mkdir()
    (folder / "notes.txt").write_text("{{ nothing of ours")
    assert Templates(folder).names() == ["hello", "shop/order"]
    assert places(folder) == []


def test_a_fault_in_any_locale_is_found_and_each_is_told_once(folder: Path, write: Write) -> None:
    write("a", subject="s", text="{{ x }}", html="<p>{{ nmae }}</p>", sample='{"x": 1}')
    write("a/de", subject="{{ xx }}")
    write("a/fr", subject="f")
    write("b", subject="s", text="{% if %}", sample="{}")
    assert places(folder) == [
        "a/body.html:1: UndefinedError: 'nmae' is not given",
        "a/de/subject.txt:1: UndefinedError: 'xx' is not given",
        "b/body.txt:1: TemplateSyntaxError: Expected an expression, got 'end of statement block'",
    ]


def test_a_template_without_a_sample_is_a_fault(folder: Path, write: Write) -> None:
    write("a", subject="s", text="t")
    assert places(folder) == ["a: there is no sample: write sample.json with every parameter"]


@pytest.mark.parametrize(
    ("file", "content", "place"),
    [
        ("sample.json", '{"x": 1\n,}', "a/sample.json:2: is not valid JSON: "),
        ("sample.json", "[1]", "a/sample.json: must hold an object, with the parameters by name"),
        ("sample.toml", "x = 1\ny = ", "a/sample.toml:2: is not valid TOML"),
    ],
)
def test_a_broken_sample_is_a_fault(folder: Path, write: Write, file: str, content: str, place: str) -> None:
    (write("a", subject="s", text="t") / file).write_text(content)
    (found,) = places(folder)
    assert found.startswith(place)


def test_a_folder_that_is_no_locale_is_a_fault(folder: Path, write: Write) -> None:
    write("a", subject="s", text="t", sample="{}")
    write("a/de_at", subject="s")
    write("a/_parts", subject="{{ shared }}")
    assert places(folder) == ["a/de_at: is no locale's folder; call it such as de or de-AT"]


def test_a_locale_with_nothing_to_fall_back_to_is_a_fault_unless_there_is_a_default(folder: Path, write: Write) -> None:
    write("a", text="t", sample="{}")
    write("a/en", subject="s")
    (found,) = places(folder)
    assert found.startswith("a/subject.txt: is missing: ")
    assert places(folder, "en") == []


def test_a_subject_that_no_header_can_carry_is_a_fault(folder: Path, write: Write) -> None:
    write("a", subject="{{ 'x' * 2000 }}", text="t", sample="{}")
    (found,) = places(folder)
    assert found.startswith("a/subject.txt: subject: must be at most ")


def test_the_sample_of_a_locale(folder: Path, write: Write) -> None:
    write("a", subject="s", text="t", sample='{"x": "plain"}')
    write("a/de", sample='{"x": "de"}')
    templates = Templates(folder)
    assert templates.sample("a") == templates.sample("a", "fr") == {"x": "plain"}
    assert templates.sample("a", "de-AT") == {"x": "de"}
    with pytest.raises(TemplateFault, match="no such template"):
        templates.sample("b")
