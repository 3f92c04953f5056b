"""`make example`: the shop, with PostgreSQL, Temporal, a worker and a mail sink of its own, until Ctrl-C.

Nothing leaves this machine. With `--check`: places an order, waits for its mail, shows the mailbox and ends.
"""

from __future__ import annotations

import argparse
import email
import email.policy
import json
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import httpx
import uvicorn

import sendonce
from sendonce.embedded import ChildProcess

HERE = Path(__file__).parent
START_SECONDS = 60.0
ENDS_SECONDS = 2.0


@contextmanager
def installation(folder: Path) -> Iterator[dict[str, str]]:
    """`sendonce up` with the shop's settings; yields what it says when everything runs."""
    log = folder / "up.log"
    command = [sys.executable, "-m", "sendonce", "up", "--data", str(folder), "--config", str(HERE / "sendonce.toml")]
    with ChildProcess([*command, "--json"], log=log) as up:
        try:
            end = time.monotonic() + START_SECONDS
            while not (told := [line for line in log.read_text().splitlines(True) if line[0] == "{"]):
                if not up.running or time.monotonic() > end:
                    sys.exit(f"sendonce up did not start:\n{log.read_text()}")
                time.sleep(0.05)
            yield json.loads(told[0])
        finally:
            up.terminate()
            up.wait(60)


@contextmanager
def shop(told: dict[str, str]) -> Iterator[str]:
    """The shop on a free port, and beside it the job that learns how confirmations ended; yields its address."""
    listening = socket.create_server(("127.0.0.1", 0))
    site = f"http://127.0.0.1:{listening.getsockname()[1]}"
    os.environ |= {"DATABASE_URL": told["database_url"], "TEMPORAL_ADDRESS": told["temporal"], "SITE": site}
    from bookstore import web

    server = uvicorn.Server(uvicorn.Config(web.app, log_level="warning"))
    serving = threading.Thread(target=server.run, args=([listening],))
    stop = threading.Event()
    learning = threading.Thread(target=learn_ends, args=(stop,))
    serving.start()
    try:
        while not server.started:
            if not serving.is_alive():
                sys.exit("the shop did not start; what is above says why")
            time.sleep(0.02)
        learning.start()
        yield site
    finally:
        stop.set()
        if learning.ident is not None:
            learning.join()
        server.should_exit = True
        serving.join()


def learn_ends(stop: threading.Event) -> None:
    """Every few seconds. Any number of processes may do so at once."""
    from bookstore.shop import take_ends
    from bookstore.web import sessions

    while not stop.wait(ENDS_SECONDS):
        with sessions.begin() as session:
            take_ends(session)


def check(site: str, told: dict[str, str]) -> None:
    """Order a book, and show what arrives."""
    from bookstore.web import sessions

    with httpx.Client(base_url=site, follow_redirects=True) as browser:
        answer = browser.post(f"/orders/{uuid4()}", data={"email": "ann@example.org", "book": "Emma"})
        answer.raise_for_status()
        key = answer.url.path.removeprefix("/mails/")
        with sessions() as session:
            final = sendonce.wait(session, key, timeout=30)
    print(f"{key}: {final.stage} after {final.attempts} attempt(s). In the mailbox:\n")
    for file in sorted(Path(told["mailbox"], "new").glob("*.eml")):
        mail = email.message_from_bytes(file.read_bytes(), policy=email.policy.default)
        body = mail.get_body(("plain",))
        print(f"To: {mail['To']}\nSubject: {mail['Subject']}\n\n{body.get_content() if body else ''}")


TRY = """\
The shop         {site}
Temporal's UI    {ui}
The mailbox      {mailbox}/new

Order a book, and look at its mail in the mailbox and in Temporal's UI. Press
Back and send the form again: there is no second mail. Let the payment be
declined: there is none at all. Ask for five password resets at once. And, in
another terminal, hold mail back, order, call the mail off on its page, and let
mail go on:

  export SENDONCE_CONFIG={settings}
  {command} pause --lane default
  {command} list
  {command} resume --lane default

Ctrl-C ends everything and removes it."""


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="make example", description=__doc__)
    parser.add_argument("--check", action="store_true", help="place an order, wait for its mail, show it, and end")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    print("Starting PostgreSQL, Temporal, a worker and the shop …", flush=True)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="bookstore-") as folder,
            installation(Path(folder)) as told,
            shop(told) as site,
        ):
            if arguments.check:
                check(site, told)
            else:
                print(
                    TRY.format(site=site, command=Path(sys.executable).parent.resolve() / "sendonce", **told),
                    flush=True,
                )
                threading.Event().wait()
    except KeyboardInterrupt:
        print("\nEverything is stopped.")


if __name__ == "__main__":
    main()
