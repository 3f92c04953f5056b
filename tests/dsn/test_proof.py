"""Proofs that a bounce brings back."""

from __future__ import annotations

import re
import uuid
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sendonce.dsn.proof import Proof, looks_proven
from sendonce.errors import ConfigurationError

OLD, NEW = b"an old key of enough octets", b"a new key of enough octets"


@given(st.uuids())
def test_both_forms_bring_the_mail_back_and_fit(email_id: UUID) -> None:
    proof = Proof([NEW])
    envelope_id = proof.envelope_id(email_id)
    address = proof.return_path(email_id, "twenty-one-octets-max@shop.example")
    assert proof.of_envelope_id(envelope_id) == proof.of_address(address) == email_id
    # RFC 3461 4: nothing that xtext would encode; 4.4: at most 100 octets.
    assert re.fullmatch(r"[0-9a-z.-]{53}", envelope_id)
    assert re.fullmatch(r"twenty-one-octets-max\+[a-z2-7]{42}@shop\.example", address)
    assert len(address.partition("@")[0]) == 64
    assert looks_proven(envelope_id)
    assert looks_proven(address)


def test_one_that_was_made_before_stays_right() -> None:
    # Bounces come for days: a release must not change the form.
    proof, email_id = Proof([b"0123456789abcdef"]), UUID("0f8fad5b-d9cb-469f-a165-70867728950e")
    assert proof.envelope_id(email_id) == "0f8fad5b-d9cb-469f-a165-70867728950e.3iljtfyokkm4bqco"
    assert proof.return_path(email_id, "b@d.example") == "b+b6h22w6zzndj7ilfocdhokevby3iljtfyokkm4bqco@d.example"


@given(st.uuids(), st.integers(0, 15), st.sampled_from("abcdefghijklmnopqrstuvwxyz234567"))
def test_one_other_character_is_another_proof(email_id: UUID, place: int, character: str) -> None:
    proof = Proof([NEW])
    left, _, mac = proof.envelope_id(email_id).partition(".")
    forged = f"{mac[:place]}{character}{mac[place + 1 :]}"
    assert (proof.of_envelope_id(f"{left}.{forged}") == email_id) is (forged == mac)


def test_a_mac_of_another_mail_proves_nothing() -> None:
    proof, mine, other = Proof([NEW]), uuid.uuid4(), uuid.uuid4()
    mac = proof.envelope_id(other).partition(".")[2]
    assert proof.of_envelope_id(f"{mine}.{mac}") is None
    address = proof.return_path(mine, "b@d.example")
    assert proof.of_address(address.replace(address[28:44], mac)) is None


def test_keys_rotate() -> None:
    email_id = uuid.uuid4()
    made = Proof([OLD]).envelope_id(email_id), Proof([OLD]).return_path(email_id, "b@d.example")
    both, after = Proof([NEW, OLD]), Proof([NEW])
    assert both.of_envelope_id(made[0]) == both.of_address(made[1]) == email_id
    assert both.envelope_id(email_id) == after.envelope_id(email_id) != made[0]
    assert after.of_envelope_id(made[0]) is after.of_address(made[1]) is None


def test_case_and_what_forwarders_put_before_it_do_not_matter() -> None:
    proof, email_id = Proof([NEW]), uuid.uuid4()
    address = proof.return_path(email_id, "bounces@shop.example")
    for seen in (
        address.upper(),
        f"prvs=1234567890={address}",
        f"SRS0=HHH=TT=shop.example={address.partition('@')[0]}@forwarder.example",
        proof.return_path(email_id, "bounces@shop.example", "-"),
    ):
        assert proof.of_address(seen) == email_id
    assert proof.of_envelope_id(proof.envelope_id(email_id).upper()) == email_id


@pytest.mark.parametrize(
    "text", ["", "bounces@shop.example", "QQ314159", "a" * 42, f"{'a' * 42}", f"x{'a' * 42}@d.example", "\x00", "ü@ü"]
)
def test_what_has_another_form_proves_nothing(text: str) -> None:
    proof = Proof([NEW])
    assert proof.of_envelope_id(text) is proof.of_address(text) is None
    assert not looks_proven(text)


def test_one_mail_has_one_address() -> None:
    # 26 characters hold two bits more than a uuid: other values of these are other text for the same mail.
    proof, email_id = Proof([NEW]), UUID(int=0)
    address = proof.return_path(email_id, "b@d.example")
    assert address.startswith(f"b+{'a' * 26}")
    assert proof.of_address(address.replace(f"{'a' * 26}", f"{'a' * 25}b", 1)) is None


def test_keys_and_mailboxes_that_cannot_work_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="at least one"):
        Proof([])
    with pytest.raises(ConfigurationError, match=r"key 2 .* has 5 octets") as error:
        Proof([NEW, b"short"])
    assert "short" not in str(error.value)
    with pytest.raises(ValueError, match="more than 21 octets"):
        Proof([NEW]).return_path(uuid.uuid4(), "twenty-two-octets-here@shop.example")
    with pytest.raises(ValueError, match="local-part@domain"):
        Proof([NEW]).return_path(uuid.uuid4(), "bounces")
    with pytest.raises(ValueError, match="delimiter"):
        Proof([NEW]).return_path(uuid.uuid4(), "bounces@shop.example", "++")


def test_keys_do_not_show() -> None:
    assert "key" not in repr(Proof([NEW]))
