"""Postfix, OpenSMTPD and Exim as Debian ships them, each with its own configuration and queue in a temporary folder.

Every launched server has the same mailboxes in the domain ``mta.test``: ``inbox`` and ``shop`` are kept as Maildirs,
``failing`` is accepted and bounces, ``grey`` is deferred at RCPT, nobody else exists. What is not installed, or cannot
run as this user, is skipped by name.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from sendonce.embedded import free_port
from sendonce.embedded.process import ChildProcess, accepts_connections, wait_until
from sendonce.testing.certificate import Certificate, self_signed


def program(name: str) -> str:
    """Its path, empty when it is not there; ``/usr/sbin`` is not on everybody's PATH."""
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin") or ""


def output_of(*command: str) -> str:
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False).stdout


class Mta(ABC):
    """One server. ``mail`` has a Maildir for each local mailbox; ``size_limit`` is what it was told, in octets."""

    name: ClassVar[str]
    size_limit = 64_000
    user, password = "shop", "correct horse"
    no_tls: str = ""
    """Why this server cannot do TLS; empty: it can."""
    no_log_in: str = ""
    """Why this server lets nobody log in; empty: it does, after STARTTLS."""
    returns_envelope_id = True
    """Whether its bounces hold the id that came with MAIL (RFC 3464 2.2.1)."""

    def __init__(self, folder: Path, certificate: Certificate) -> None:
        self.folder, self.certificate = folder, certificate
        self.mail, self.log, self.port = folder / "mail", folder / "log", free_port()
        # Whoever gets the mail: root delivers nothing as itself.
        self.account = pwd.getpwnam("nobody") if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
        self.own(self.mail)
        self.own(self.log)
        for file in ("certificate.pem", "key.pem"):
            (folder / file).write_bytes(certificate.file.with_name(file).read_bytes())
            (folder / file).chmod(0o600)

    @classmethod
    @abstractmethod
    def missing(cls) -> str:
        """Why it cannot run here and what helps; empty: it can."""

    @abstractmethod
    def start(self) -> ChildProcess:
        """Write the configuration and start it in the foreground."""

    def own(self, path: Path) -> None:
        """Make the folder, or take the file, for the account that gets the mail."""
        if not path.exists():
            path.mkdir()
        os.chown(path, self.account.pw_uid, self.account.pw_gid)

    def write(self, name: str, text: str) -> Path:
        file = self.folder / name
        file.write_text(text, encoding="utf-8")
        return file

    def said(self) -> str:
        """What its log ends with."""
        return "\n".join(file.read_text(errors="replace")[-2000:] for file in self.log.iterdir()) or "nothing"

    def mails(self, mailbox: str, text: str) -> list[bytes]:
        """The mails in this mailbox that contain ``text``. A Maildir's ``new`` holds whole messages only."""
        found = (file.read_bytes() for file in (self.mail / mailbox / "new").glob("*"))
        return [mail for mail in found if text.encode() in mail]

    def wait_for(self, mailbox: str, text: str) -> bytes:
        """The first mail there that contains ``text``."""
        assert wait_until(lambda: bool(self.mails(mailbox, text)), 30), f"{self.name} did not deliver: {self.said()}"
        return self.mails(mailbox, text)[0]


class Exim(Mta):
    """Runs as anybody: with ``-C`` and a caller it does not trust it gives its privileges up (Exim's specification,
    chapter 5, "-C"), and with ``deliver_drop_privilege`` it delivers without them (chapter 56.3).
    """

    name = "Exim"

    @classmethod
    def missing(cls) -> str:
        return "" if program("exim4") or program("exim") else "Exim is not installed: apt install exim4-daemon-light"

    def start(self) -> ChildProcess:
        for name in ("spool", "certificate.pem", "key.pem"):
            self.own(self.folder / name)
        configuration = f"""
primary_hostname = mta.test
exim_user = {self.account.pw_uid}
exim_group = {self.account.pw_gid}
deliver_drop_privilege = true
spool_directory = {self.folder}/spool
log_file_path = {self.log}/%slog
pid_file_path = {self.folder}/spool/daemon.pid
local_interfaces = 127.0.0.1
daemon_smtp_ports = {self.port}
keep_environment =
message_size_limit = {self.size_limit}
dsn_advertise_hosts = *
smtputf8_advertise_hosts = *
tls_advertise_hosts = *
tls_certificate = {self.folder}/certificate.pem
tls_privatekey = {self.folder}/key.pem
acl_smtp_rcpt = rcpt
acl_smtp_data = accept
begin acl
rcpt:
  defer recipients = grey@mta.test
        message = 4.7.1 Greylisted, come back later
  accept domains = mta.test
         verify = recipient
  deny message = 5.1.1 No such user
begin routers
failing:
  driver = accept
  local_parts = failing
  transport = failing
kept:
  driver = accept
  local_parts = inbox : shop
  transport = kept
begin transports
failing:
  driver = pipe
  command = /bin/false
kept:
  driver = appendfile
  directory = {self.mail}/$local_part_data
  maildir_format
begin authenticators
plain:
  driver = plaintext
  public_name = PLAIN
  server_condition = ${{if and{{{{eq{{$auth2}}{{{self.user}}}}}{{eq{{$auth3}}{{{self.password}}}}}}}}}
  server_advertise_condition = ${{if def:tls_in_cipher}}
"""
        return ChildProcess(
            [program("exim4") or program("exim"), "-C", self.write("exim.conf", configuration), "-bdf"],
            log=self.log / "output",
            cwd=self.folder,
            user=self.account.pw_uid if os.geteuid() == 0 else None,
            group=self.account.pw_gid if os.geteuid() == 0 else None,
        )


class Postfix(Mta):
    """Its daemons run as two users of its own and as whoever gets the mail, so it wants root."""

    name = "Postfix"
    no_log_in = "Postfix checks passwords through Dovecot or Cyrus SASL only, and neither is set up here"

    @classmethod
    def missing(cls) -> str:
        if not program("postfix"):
            return "Postfix is not installed: apt install postfix"
        return "" if os.geteuid() == 0 else "Postfix needs root: run `make mta` as root, in a container"

    def start(self) -> ChildProcess:
        self.write(
            "main.cf",
            f"""
compatibility_level = 3.6
queue_directory = {self.folder}/spool
data_directory = {self.folder}/data
maillog_file = {self.log}/mail.log
maillog_file_prefixes = {self.log}
myhostname = mta.test
inet_interfaces = 127.0.0.1
inet_protocols = ipv4
mydestination =
alias_maps =
virtual_mailbox_domains = mta.test
virtual_mailbox_base = {self.mail}
virtual_mailbox_maps = inline:{{ inbox@mta.test=inbox/ shop@mta.test=shop/ failing@mta.test=x/ grey@mta.test=x/ }}
virtual_uid_maps = static:{self.account.pw_uid}
virtual_gid_maps = static:{self.account.pw_gid}
transport_maps = inline:{{ failing@mta.test=failing: }}
message_size_limit = {self.size_limit}
smtpd_tls_security_level = may
smtpd_tls_chain_files = {self.folder}/key.pem, {self.folder}/certificate.pem
smtpd_recipient_restrictions =
    check_recipient_access inline:{{ {{ grey@mta.test = 450 4.7.1 Greylisted, come back later }} }}
    reject_unauth_destination
""",
        )
        self.write(
            "master.cf",
            f"""
127.0.0.1:{self.port} inet n - n - - smtpd
cleanup unix n - n - 0 cleanup
qmgr unix n - n 300 1 qmgr
tlsmgr unix - - n - 1 tlsmgr
postlog unix-dgram n - n - 1 postlogd
rewrite unix - - n - - trivial-rewrite
bounce unix - - n - 0 bounce
defer unix - - n - 0 bounce
proxymap unix - - n - - proxymap
anvil unix - - n - 1 anvil
virtual unix - n n - - virtual
failing unix - n n - - pipe user={self.account.pw_name} argv=/bin/false
""",
        )
        (self.folder / "spool").mkdir()
        with (self.log / "output").open("ab") as output:
            # Makes the queue's folders. "start" would put the server out of reach of who started it.
            subprocess.run([program("postfix") or "", "-c", self.folder, "check"], check=False, stderr=output)
        daemons = subprocess.run(
            [program("postconf") or "", "-dh", "daemon_directory"], capture_output=True, check=True
        )
        master = Path(daemons.stdout.decode().strip()) / "master"
        return ChildProcess([master, "-c", self.folder, "-d"], log=self.log / "output")


class OpenSmtpd(Mta):
    """It wants root, and its queue's folder and its socket are compiled in: they get private mounts here.

    It offers DSN and yet its bounces leave the envelope id out (``bounce.c``, also in its newest release, 7.8).
    """

    name = "OpenSMTPD"
    returns_envelope_id = False

    def __init__(self, folder: Path, certificate: Certificate) -> None:
        super().__init__(folder, certificate)
        if "OpenSMTPD 6." in output_of(program("smtpd"), "-h"):
            self.no_tls = "OpenSMTPD 6 cannot do TLS with OpenSSL 3 (its issue 1171): install 7.3 or later"
            self.no_log_in = self.no_tls

    @classmethod
    def missing(cls) -> str:
        if not (program("smtpctl") and program("smtpd")):
            return "OpenSMTPD is not installed: apt install opensmtpd"
        if os.geteuid() != 0:
            return "OpenSMTPD needs root: run `make mta` as root, in a container"
        private = program("unshare") and output_of("unshare", "--mount", "echo", "private") == "private\n"
        return "" if private else "OpenSMTPD needs private mounts: run `make mta` with CAP_SYS_ADMIN"

    def start(self) -> ChildProcess:
        self.write("credentials", f"{self.user} {output_of('openssl', 'passwd', '-6', self.password)}")
        configuration = f"""
pki mta.test cert "{self.folder}/certificate.pem"
pki mta.test key "{self.folder}/key.pem"
table credentials file:{self.folder}/credentials
table owner {{ "@" = {self.account.pw_name} }}
table grey {{ "grey@mta.test" }}
smtp max-message-size {self.size_limit}
filter greylist phase rcpt-to match rcpt-to <grey> reject "450 4.7.1 Greylisted, come back later"
listen on 127.0.0.1 port {self.port} hostname mta.test tls pki mta.test auth-optional <credentials> filter greylist
action failing mda "false" virtual <owner>
action kept maildir "{self.mail}/%{{rcpt.user}}" virtual <owner>
match from any for rcpt-to "failing@mta.test" action failing
match from any for rcpt-to {{ "inbox@mta.test", "shop@mta.test" }} action kept
"""
        (self.folder / "spool").mkdir()
        script = 'mount --bind "$1/spool" /var/spool && mount -t tmpfs none /run && exec "$2" -d -f "$1/smtpd.conf"'
        self.write("smtpd.conf", configuration).chmod(0o600)
        return ChildProcess(
            ["unshare", "--mount", "sh", "-c", script, "sh", self.folder, program("smtpd")],
            log=self.log / "output",
        )


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return self_signed(tmp_path_factory.mktemp("certificate"), "IP:127.0.0.1")


@pytest.fixture(scope="module", params=[Exim, Postfix, OpenSmtpd], ids=lambda kind: kind.name)
def mta(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, certificate: Certificate
) -> Iterator[Mta]:
    """Each server in turn, answering on ``port``."""
    kind: type[Mta] = request.param
    if reason := kind.missing():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("mta")
    if os.geteuid() == 0:
        # pytest lets nobody else into its folders, and a server that root starts becomes somebody else.
        folder = Path(tempfile.mkdtemp(prefix="sendonce-mta-"))
        folder.chmod(0o755)
    server = kind(folder, certificate)
    process = server.start()
    try:
        wait_until(lambda: not process.running or accepts_connections(server.port), 30)
        assert accepts_connections(server.port), f"{server.name} does not start: {server.said()}"
        yield server
    finally:
        # It ends its children, and whatever is left in its process group goes with it.
        process.terminate()
        wait_until(lambda: not process.running, 10)
        process.kill()
        if os.geteuid() == 0:
            shutil.rmtree(folder)
