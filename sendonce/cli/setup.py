"""The command ``setup``: what store and Temporal need before anything runs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import typer

from sendonce import settings
from sendonce.cli.base import ConfigOption, ExitCode, JsonOption, app
from sendonce.cli.output import complain, print_json, progress
from sendonce.cli.running import upgraded

if TYPE_CHECKING:
    from collections.abc import Mapping


@app.command()
def setup(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Bring the schema up to this release, and register Sendonce's search attributes in the Temporal namespace.

    Safe to repeat, and from several places at once. Workers and starters use the attributes within a minute. Exit code
    1 when this server does not let clients register any, as on Temporal Cloud: the message says how it is done there.

    JSON: one object: before (null when there was no schema), after, namespace, registered (names, now), attributes.
    """
    from temporalio.service import RPCError

    from sendonce.activities.failures import said_of
    from sendonce.search_attributes import NAMES, NotRegistered

    found = settings.load(config, with_accounts=False)
    temporal = settings.temporal_connection(found)
    before, after = upgraded(found.database_url)
    if not as_json:
        print(
            f"The schema is at {after}."
            if before == after
            else f"The schema went from {before or 'nothing'} to {after}."
        )
    try:
        with progress("registering search attributes"):
            namespace, registered = asyncio.run(_register(temporal))
    except NotRegistered as error:
        complain(str(error))
        raise typer.Exit(ExitCode.NO) from None
    except (RPCError, RuntimeError) as error:
        why = said_of(error)
        complain(
            f"Temporal at {temporal['target_host']}, namespace {temporal.get('namespace', 'default')}, cannot be used"
            f" ({why}); check [temporal] address and namespace, or SENDONCE_TEMPORAL_ADDRESS, and run setup again"
        )
        raise typer.Exit(ExitCode.AWAY) from None
    if as_json:
        print_json(
            {
                "before": before,
                "after": after,
                "namespace": namespace,
                "registered": registered,
                "attributes": list(NAMES),
            }
        )
    elif registered:
        print(f"Registered in namespace {namespace}: {', '.join(registered)}.")
    else:
        print(f"Namespace {namespace} has {', '.join(NAMES)} already.")


async def _register(temporal: Mapping[str, Any]) -> tuple[str, list[str]]:
    from temporalio.client import Client

    from sendonce.activities.failures import client_options
    from sendonce.search_attributes import register

    client = await Client.connect(**{**temporal, **client_options()})
    return client.namespace, await register(client)
