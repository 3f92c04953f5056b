"""``templates check`` and ``templates preview``."""

from __future__ import annotations

import json
from email import message_from_bytes, policy
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Run

PREVIEW_MEMBERS = {"subject", "sender", "headers", "text", "html", "mime"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "mails"
    write(
        folder / "order",
        {
            "subject.txt": "Order {{ id }}",
            "body.html": "<p>Größe {{ id }}</p>",
            "meta.toml": 'from = "Shop <shop@example.org>"\nheaders = { X-Kind = "order" }',
            "sample.json": '{"id": 4711}',
        },
    )
    write(folder / "order" / "de", {"subject.txt": "Bestellung {{ id }}"})
    (tmp_path / "sendonce.toml").write_text('[templates]\nfolder = "mails"\n')
    return folder


def write(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(content, encoding="utf-8")


@pytest.mark.usefixtures("folder")
def test_templates_in_order(run: Run) -> None:
    found = run("templates", "check")
    assert (found.code, found.out, found.err) == (0, "1 template is in order\n", "")
    found = run("templates", "check", "--json")
    assert (found.code, found.out, found.err) == (0, "", "")


def test_faults_are_one_line_each_and_exit_code_1(run: Run, folder: Path) -> None:
    write(folder / "order", {"body.html": "<p>\n{{ nmae }}</p>"})
    write(folder / "reset", {"subject.txt": "s", "body.txt": "t"})
    found = run("templates", "check")
    assert (found.code, found.err) == (1, "")
    assert found.out.splitlines() == [
        "order/body.html:2: UndefinedError: 'nmae' is not given",
        "reset: there is no sample: write sample.json with every parameter",
    ]
    found = run("templates", "check", "--json")
    assert found.code == 1
    assert found.objects[0] == {
        "template": "order",
        "file": "order/body.html",
        "line": 2,
        "why": "UndefinedError: 'nmae' is not given",
    }


def test_the_folder_is_relative_to_the_settings_file_or_given(run: Run, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "sendonce.toml").rename(tmp_path / "etc" / "sendonce.toml")
    found = run("templates", "check")
    assert found.code == 2
    assert found.err == "sendonce: environment: [templates] folder is missing; write it, or give --folder\n"
    found = run("templates", "check", "--config", "etc/sendonce.toml")
    assert found.code == 2
    assert "etc/mails" in found.err
    assert run("templates", "check", "--config", "etc/sendonce.toml", "--folder", "mails").code == 0
    folder.rename(tmp_path / "etc" / "mails")
    assert run("templates", "check", "--config", "etc/sendonce.toml").code == 0


def test_no_secret_of_the_settings_is_needed(run: Run, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "sendonce.toml").write_text(
        f"[templates]\nfolder = '{folder.name}'\n"
        '[store]\ndatabase_url_env = "UNSET_URL"\n[temporal]\napi_key_env = "UNSET_KEY"\n'
        '[accounts.default]\ntransport = "smtp"\nhost = "127.0.0.1"\npassword_env = "UNSET_PASSWORD"\n'
    )
    for command in (("templates", "check"), ("templates", "preview", "order")):
        for given in ((), ("--config", "sendonce.toml")):
            found = run(*command, *given)
            assert (found.code, found.err) == (0, "")
    found = run("templates", "preview", "order", SENDONCE_CONFIG="elsewhere.toml")
    assert (found.code, found.out) == (2, "")
    assert found.err.startswith("sendonce: elsewhere.toml: cannot be read")


def test_the_default_locale_of_the_settings_serves(run: Run, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "sendonce.toml").write_text('[templates]\nfolder = "mails"\ndefault_locale = "de"\n')
    assert run("templates", "preview", "order", "--json").objects[0]["subject"] == "Bestellung 4711"
    (tmp_path / "sendonce.toml").write_text('[templates]\nfolder = "mails"\ndefault_locale = "in German"\n')
    found = run("templates", "check")
    assert found.code == 2
    assert "[templates] default_locale" in found.err


@pytest.mark.usefixtures("folder")
def test_preview_shows_everything(run: Run) -> None:
    found = run("templates", "preview", "order", "--locale", "de-AT")
    assert (found.code, found.err) == (0, "")
    for shown in ("Bestellung 4711", "Shop <shop@example.org>", "X-Kind", "--- text\nGröße 4711", "<p>Größe 4711</p>"):
        assert shown in found.out
    assert "Content-Type: multipart/alternative" in found.out


@pytest.mark.usefixtures("folder")
def test_preview_of_one_part_is_that_part_alone(run: Run) -> None:
    assert run("templates", "preview", "order", "--part", "text").out == "Größe 4711\n"
    assert run("templates", "preview", "order", "--part", "html").out == "<p>Größe 4711</p>"
    mime = message_from_bytes(
        run("templates", "preview", "order", "--part", "mime").out.encode(), policy=policy.default
    )
    assert (mime["Subject"], mime["From"], mime["X-Kind"]) == ("Order 4711", "Shop <shop@example.org>", "order")
    assert [part.get_content_type() for part in mime.iter_parts()] == ["text/plain", "text/html"]


@pytest.mark.usefixtures("folder")
def test_preview_as_json(run: Run) -> None:
    (found,) = run("templates", "preview", "order", "--json").objects
    assert found.keys() == PREVIEW_MEMBERS
    assert found["subject"] == "Order 4711"
    assert found["sender"] == {"email": "shop@example.org", "name": "Shop"}
    assert "\r\n" in found["mime"]


@pytest.mark.usefixtures("folder")
def test_preview_with_other_parameters(run: Run, tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text("id = 1")
    (tmp_path / "p.json").write_text(json.dumps({"id": 2}))
    for file, subject in (("p.toml", "Order 1"), ("p.json", "Order 2")):
        assert run("templates", "preview", "order", "--parameters", file, "--json").objects[0]["subject"] == subject
    (tmp_path / "p.json").write_text("{\n,}")
    found = run("templates", "preview", "order", "--parameters", "p.json")
    assert found.code == 2
    assert found.err.startswith("sendonce: p.json:2: is not valid JSON: ")
    found = run("templates", "preview", "order", "--parameters", "none.json")
    assert found.code == 2
    assert "none.json: cannot be read: " in found.err


@pytest.mark.usefixtures("folder")
def test_preview_of_what_is_broken_or_missing_is_exit_code_1(run: Run, tmp_path: Path) -> None:
    found = run("templates", "preview", "odrer")
    assert (found.code, found.out) == (1, "")
    assert found.err == "sendonce: odrer: there is no such template; did you mean 'order'?\n"
    (tmp_path / "p.json").write_text("{}")
    found = run("templates", "preview", "order", "--parameters", "p.json")
    assert (found.code, found.err) == (1, "sendonce: order/subject.txt:1: UndefinedError: 'id' is not given\n")


@pytest.mark.usefixtures("folder")
def test_preview_opens_the_html_in_the_browser(run_process: Run, tmp_path: Path) -> None:
    browser = tmp_path / "browser"
    browser.write_text('#!/bin/sh\necho "$1" > opened\n')
    browser.chmod(0o755)
    (tmp_path / "tmp").mkdir()
    # A process keeps the browser and the temporary folder that it found first.
    variables = {"BROWSER": f"{browser} %s", "TMPDIR": str(tmp_path / "tmp")}
    found = run_process("templates", "preview", "order", "--open", **variables)
    assert (found.code, found.err) == (0, "")
    (page,) = (tmp_path / "tmp").iterdir()
    assert (tmp_path / "opened").read_text().strip() == page.as_uri()
    assert page.read_text(encoding="utf-8") == "\ufeff<p>Größe 4711</p>"


@pytest.mark.usefixtures("folder")
def test_samples_come_from_classes_in_modules_beside_the_settings(run: Run, tmp_path: Path, folder: Path) -> None:
    write(folder / "parcel_typed", {"subject.txt": "{{ number }}", "body.txt": "{{ number }}"})
    code = "from pydantic import Field\nfrom sendonce import Template\n"
    code += "class ParcelTyped(Template):\n    number: str = Field(examples=['P-1'])\n"
    (tmp_path / "shop_mails_typed.py").write_text(code)
    assert run("templates", "check").code == 1
    (tmp_path / "sendonce.toml").write_text('[templates]\nfolder = "mails"\nmodules = ["shop_mails_typed"]\n')
    assert run("templates", "check").out == "2 templates are in order\n"
    assert json.loads(run("templates", "preview", "parcel_typed", "--json").out)["subject"] == "P-1"
    (tmp_path / "sendonce.toml").write_text('[templates]\nfolder = "mails"\nmodules = ["shop_nothing"]\n')
    found = run("templates", "check")
    assert (found.code, found.out) == (2, "")
    assert "[templates] modules: shop_nothing cannot be imported (ModuleNotFoundError" in found.err
