"""``sendonce setup``: the schema and the search attributes, on a server that has neither."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from sendonce.embedded import EmbeddedTemporal
from sendonce.search_attributes import NAMES

if TYPE_CHECKING:
    from tests.conftest import Run


@pytest.fixture
def bare_temporal(scrubbed_environment: None) -> Iterator[EmbeddedTemporal]:
    """One that knows none of the attributes."""
    with EmbeddedTemporal.start() as server:
        yield server


def test_setup_makes_what_is_missing_and_is_safe_to_repeat(
    run: Run, empty_database_url: str, bare_temporal: EmbeddedTemporal
) -> None:
    there = {"SENDONCE_DATABASE_URL": empty_database_url, "SENDONCE_TEMPORAL_ADDRESS": bare_temporal.target}
    first = run("setup", "--json", **there)
    assert first.code == 0, first.err
    told = first.objects[0]
    assert (told["before"], told["namespace"]) == (None, "default")
    assert told["registered"] == told["attributes"] == list(NAMES)

    again = run("setup", "--json", **there)
    assert again.code == 0
    assert again.objects[0]["registered"] == []
    assert again.objects[0]["before"] == again.objects[0]["after"] == told["after"]
    text = run("setup", **there)
    assert text.out == (f"The schema is at {told['after']}.\nNamespace default has {', '.join(NAMES)} already.\n")


def test_setup_says_what_cannot_be_reached(run: Run, database_url: str, free_port: int) -> None:
    away = {"SENDONCE_DATABASE_URL": database_url, "SENDONCE_TEMPORAL_ADDRESS": f"127.0.0.1:{free_port}"}
    found = run("setup", **away)
    assert found.code == 3
    assert f"Temporal at 127.0.0.1:{free_port}, namespace default, cannot be used" in found.err
    # The schema is there all the same.
    assert found.out.startswith("The schema is at ")
