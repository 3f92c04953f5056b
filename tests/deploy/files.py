"""What ``deploy/`` and the files beside it hold, as data."""

from __future__ import annotations

import copy
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import promql_parser
import yaml

ROOT = Path(__file__).parents[2]
COMPOSE = "docker-compose.yml"
SETTINGS = "deploy/compose/sendonce.toml"


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def read_yaml(name: str) -> Any:
    """The one document of a file; the caller's own, to be changed at will."""
    (found,) = copy.deepcopy(_documents(name))
    return found


@cache
def _documents(name: str) -> list[Any]:
    return list(yaml.safe_load_all(read(name)))


def schema(name: str) -> Any:
    """A published schema; ``schemas/README.md`` says whose."""
    return json.loads(read(f"tests/deploy/schemas/{name}"))


def services() -> dict[str, Any]:
    found: dict[str, Any] = read_yaml(COMPOSE)["services"]
    return found


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile: each instruction and its arguments, on one line."""
    lines = [line for line in read("Dockerfile").splitlines() if line and not line.startswith("#")]
    whole = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in whole.splitlines())]


def manifests() -> list[dict[str, Any]]:
    """Every object of the Kubernetes example."""
    files = sorted((ROOT / "deploy/kubernetes").glob("*.yaml"))
    return [found for file in files for found in copy.deepcopy(_documents(str(file.relative_to(ROOT))))]


def manifest(kind: str, name: str) -> dict[str, Any]:
    (found,) = [one for one in manifests() if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return found


def rules() -> list[dict[str, Any]]:
    """Every rule that Prometheus is given."""
    return [rule for group in read_yaml("deploy/prometheus/alerts.yml")["groups"] for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(read("deploy/grafana/dashboard.json"))
    return found


def panels() -> list[dict[str, Any]]:
    """Every panel of the dashboard that shows something."""
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def expressions() -> dict[str, str]:
    """Every expression of rules and dashboard, by where it stands, with Grafana's own variables filled in."""
    found = {f"alert {rule['alert']}": str(rule["expr"]) for rule in rules()}
    for panel in panels():
        for target in panel["targets"]:
            found[f"panel {panel['title']} {target['refId']}"] = target["expr"].replace("$__rate_interval", "1m")
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            series, _, label = variable["definition"].removeprefix("label_values(").removesuffix(")").rpartition(", ")
            found[f"variable {variable['name']}"] = f"count by ({label}) ({series})"
    return found


def read_by(expression: str) -> tuple[dict[str, set[str]], set[str]]:
    """The metrics that an expression reads, each with the labels it is chosen by; and the labels it keeps.

    Raises ValueError for what is no PromQL.
    """
    metrics: dict[str, set[str]] = {}
    kept: set[str] = set()

    def visit(node: Any) -> None:
        if isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
            kept.update(node.modifier.labels)
        vector = node.vector_selector if isinstance(node, promql_parser.MatrixSelector) else node
        if isinstance(vector, promql_parser.VectorSelector):
            metrics.setdefault(str(vector.name), set()).update(m.name for m in vector.matchers.matchers)

    promql_parser.walk(promql_parser.parse(expression), visit)
    return metrics, kept
