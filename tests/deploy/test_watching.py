"""Rules and dashboard: what they are made of, and that Prometheus's own tool agrees where it is installed.

That every metric in them is one which a worker shows is tested in ``test_running.py``.
"""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess

import pytest
import typer
import yaml

from sendonce.cli import app
from tests.deploy.files import ROOT, dashboard, expressions, panels, read, read_by, read_yaml, rules, services

SENDONCE = re.compile(r"'(sendonce [^']*)'")


def test_every_expression_is_promql() -> None:
    found = expressions()
    assert len(found) > 60
    for place, text in found.items():
        metrics, _ = read_by(text)
        assert metrics, place
    with pytest.raises(ValueError, match="paren"):
        read_by("sum by (lane) (sendonce_due")


def test_every_rule_says_how_bad_it_is_and_what_to_run() -> None:
    command = typer.main.get_command(app)
    assert isinstance(command, typer.core.TyperGroup)
    names = [rule["alert"] for rule in rules()]
    assert len(names) == len(set(names)) == 19
    for rule in rules():
        name = rule["alert"]
        assert re.fullmatch(r"Sendonce[A-Za-z]+", name)
        assert rule["labels"]["severity"] in {"page", "ticket"}, name
        # A rate over a time has waited already.
        assert "for" in rule or "[15m]" in rule["expr"], name
        assert set(rule["annotations"]) == {"summary", "description", "action"}, name
        commands = SENDONCE.findall(rule["annotations"]["action"])
        assert commands, f"{name} names no command"
        for text in commands:
            words = text.split()
            assert words[1] in command.commands, f"{name}: {text}"
            options = {word for word in words if word.startswith("--")}
            known = {option for found in _below(command.commands[words[1]]) for option in found}
            assert options <= known, f"{name}: {text}"


def _below(command: object) -> list[list[str]]:
    """The options of a command and of those below it."""
    own = [list(one.opts) for one in getattr(command, "params", [])]
    return own + [found for one in getattr(command, "commands", {}).values() for found in _below(one)]


def test_every_rule_is_seen_firing_in_the_tests_of_promtool() -> None:
    expected = read("deploy/prometheus/alerts_test.yml")
    for rule in rules():
        assert f'alertname="{rule["alert"]}"' in expected, rule["alert"]


def test_the_page_lists_every_rule() -> None:
    listed = re.findall(r"^\| `(Sendonce\w+)` \|", read("docs/deployment.md"), re.MULTILINE)
    assert listed == [rule["alert"] for rule in rules()]


def test_gauges_about_the_store_are_never_added_up_over_processes() -> None:
    """Each process shows the same: two workers would make twice the backlog."""
    shared = r"sendonce_(outstanding|due|oldest_due_seconds|alarms_open|sample_age_seconds)\b"
    for place, text in expressions().items():
        if place.startswith("variable"):
            continue
        for found in re.finditer(shared, text):
            before = text[: found.start()].rstrip("( ")
            assert re.search(r"(max|min)( by \([a-z, ]+\))?$|delta$", before), f"{place}: {text}"


def test_the_dashboard_is_one_that_grafana_takes() -> None:
    board = dashboard()
    assert board["uid"] == "sendonce"
    assert board["schemaVersion"] >= 39
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    variables = {variable["name"] for variable in board["templating"]["list"]}
    for panel in board["panels"]:
        place = panel["gridPos"]
        assert 0 <= place["x"] < place["x"] + place["w"] <= 24
    for one, other in itertools.combinations([panel["gridPos"] for panel in board["panels"]], 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, (one, other)
    for panel in panels():
        assert panel["datasource"] == {"type": "prometheus", "uid": "${source}"}
        assert panel["targets"], panel["title"]
        for target in panel["targets"]:
            assert set(re.findall(r"\$(\w+)", target["expr"])) <= variables | {"__rate_interval"}, panel["title"]
    read_every = {metric for text in expressions().values() for metric in read_by(text)[0]}
    for asked in ("outstanding", "accepted_seconds_bucket", "replies_total", "attempts_to_success_bucket"):
        assert f"sendonce_{asked}" in read_every


def test_what_prometheus_and_grafana_are_provisioned_with_fits_together() -> None:
    scrape = read_yaml("deploy/prometheus/prometheus.yml")
    (job,) = scrape["scrape_configs"]
    (names,) = job["dns_sd_configs"]
    assert set(names["names"]) <= set(services())
    assert scrape["rule_files"] == ["alerts.yml"]
    (source,) = read_yaml("deploy/grafana/provisioning/datasources/sendonce.yml")["datasources"]
    assert source["url"].removeprefix("http://").partition(":")[0] in services()
    assert source["jsonData"]["timeInterval"] == scrape["global"]["scrape_interval"]
    (provider,) = read_yaml("deploy/grafana/provisioning/dashboards/sendonce.yml")["providers"]
    mounted = {config["target"] for config in services()["grafana"]["configs"]}
    assert f"{provider['options']['path']}/dashboard.json" in mounted


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "rules", "alerts.yml"),
        ("check", "config", "prometheus.yml"),
        ("test", "rules", "alerts_test.yml"),
    ],
    ids=" ".join,
)
def test_promtool_agrees(arguments: tuple[str, ...]) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed; Debian's package prometheus has it")
    done = subprocess.run(
        [promtool, *arguments], cwd=ROOT / "deploy/prometheus", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # A file that promtool reads and finds nothing in would pass too.
    assert "SUCCESS" in done.stdout
    assert yaml.safe_load(read(f"deploy/prometheus/{arguments[-1]}"))
