"""What customers can rely on, with providers that are played and hours that are skipped."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

from fastapi.testclient import TestClient
from sqlalchemy import select

from bookstore.shop import take_ends
from bookstore.tables import Order
from bookstore.web import sessions
from sendonce.testing import Outbox, Sendonce

ANN = "ann@example.org"


def order(browser: TestClient, number: object = None, **more: str) -> str:
    """Press the button; returns the path of the page about the mail."""
    answer = browser.post(f"/orders/{number or uuid4()}", data={"email": ANN, "book": "Emma", **more})
    assert answer.status_code == 200, answer.text
    return str(answer.url.path)


def test_a_provider_that_is_down_for_three_hours_costs_no_mail(browser: TestClient, sendonce: Sendonce) -> None:
    sendonce.provider.down_for(hours=3)
    page = order(browser)
    sendonce.skip(hours=2)
    assert not sendonce.mailbox
    assert "Not accepted yet" in browser.get(page).text
    sendonce.run_until_idle()
    mail = sendonce.mailbox.one(to=ANN, subject="Your order: Emma")
    assert "9.50 EUR" in mail.text
    assert mail.link("/mails/").endswith(page)
    assert "accepted it at attempt" in browser.get(page).text


def test_a_declined_payment_leaves_no_order_and_no_mail(browser: TestClient, sendonce_outbox: Outbox) -> None:
    answer = browser.post(f"/orders/{uuid4()}", data={"email": ANN, "book": "Emma", "declined": "on"})
    assert answer.status_code == 402
    assert not sendonce_outbox.all()
    with sessions() as session:
        assert session.scalars(select(Order)).all() == []


def test_a_double_click_is_one_order_and_one_mail(browser: TestClient, sendonce: Sendonce) -> None:
    number = uuid4()
    with ThreadPoolExecutor(2) as clicks:
        pages = list(clicks.map(lambda _: order(browser, number), range(2)))
    assert pages[0] == pages[1] == order(browser, number)
    sendonce.run_until_idle()
    assert len(sendonce.mailbox) == 1


def test_of_five_resets_the_last_one_arrives(browser: TestClient, sendonce: Sendonce) -> None:
    order(browser)
    sendonce.deliver()
    sendonce.mailbox.clear()
    sendonce.provider.down_for(minutes=5)
    for _ in range(5):
        assert browser.post("/password-resets", data={"email": ANN}).status_code == 202
    newest = sendonce.outbox.find(template="password_reset")[-1]
    sendonce.run_until_idle()
    assert sendonce.mailbox.one(to=ANN).link("/passwords/") in (newest.text or "")


def test_a_reset_that_would_come_too_late_does_not_come(browser: TestClient, sendonce: Sendonce) -> None:
    order(browser)
    sendonce.deliver()
    sendonce.provider.down_for(hours=1)
    browser.post("/password-resets", data={"email": ANN})
    sendonce.run_until_idle()
    assert sendonce.outbox.one(template="password_reset").stage == "expired"


def test_nobody_learns_who_is_a_customer(browser: TestClient, sendonce_outbox: Outbox) -> None:
    known, unknown = order(browser), browser.post("/password-resets", data={"email": "eve@example.org"})
    assert known
    assert unknown.text == browser.post("/password-resets", data={"email": ANN}).text
    assert [mail.recipients for mail in sendonce_outbox.find(template="password_reset")] == [(ANN,)]


def test_an_invoice_comes_once_with_its_pdf(browser: TestClient, sendonce: Sendonce) -> None:
    number = uuid4()
    order(browser, number)
    for _ in range(2):
        browser.post(f"/orders/{number}/invoice")
    sendonce.run_until_idle()
    invoice = sendonce.mailbox.one(subject="invoice").attachment("invoice.pdf")
    assert invoice.content_type == "application/pdf"
    assert invoice.content.startswith(b"%PDF-1.4\n")
    assert f"Invoice for order {number}".encode() in invoice.content


def test_a_mailbox_that_does_not_exist_is_noted(browser: TestClient, sendonce: Sendonce) -> None:
    sendonce.provider.refuse(ANN)
    page = order(browser)
    sendonce.deliver()
    with sessions.begin() as session:
        take_ends(session)
    assert "refused it for good (it said 550 5.1.1)" in browser.get(page).text
    assert "no such mailbox" in browser.get("/").text


def test_a_mail_that_waits_is_called_off(browser: TestClient, sendonce: Sendonce) -> None:
    sendonce.provider.down_for(hours=1)
    page = order(browser)
    assert "called off" in browser.post(f"{page}/cancel").text
    sendonce.run_until_idle()
    assert not sendonce.mailbox


def test_an_address_that_is_none_is_refused_at_once(browser: TestClient, sendonce_outbox: Outbox) -> None:
    answer = browser.post(f"/orders/{uuid4()}", data={"email": "nobody", "book": "Emma"})
    assert answer.status_code == 422
    assert not sendonce_outbox.all()
