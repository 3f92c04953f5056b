"""The shop's pages: one transaction for each request, committed before the answer is sent.

Settings come from the environment: DATABASE_URL; SITE, what links in mails begin with; and TEMPORAL_ADDRESS, which may
be missing: then the worker finds committed mail by itself, a moment later.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated
from urllib.parse import parse_qsl
from uuid import UUID, uuid4

from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import HTMLResponse, PlainTextResponse, RedirectResponse
from fastapi.templating import Jinja2Templates
from sqlalchemy import create_engine, select
from sqlalchemy.orm import sessionmaker

from bookstore import shop
from bookstore.tables import Base, Order
from bookstore.words import in_words
from sendonce import BackgroundStarter, InvalidEmail, cancel, status
from sendonce.fastapi import SyncUnitOfWork, unit_of_work

sessions = sessionmaker()
starter = BackgroundStarter(os.environ["TEMPORAL_ADDRESS"]) if "TEMPORAL_ADDRESS" in os.environ else None
Work = Annotated[SyncUnitOfWork, unit_of_work(sessions, starter)]
pages = Jinja2Templates(Path(__file__).with_name("pages"))


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Connect to the database. A real shop migrates its tables before it starts."""
    engine = create_engine(os.environ["DATABASE_URL"].replace("postgresql://", "postgresql+psycopg://", 1))
    sessions.configure(bind=engine)
    Base.metadata.create_all(engine)
    yield
    if starter is not None:
        starter.close()
    engine.dispose()


app = FastAPI(lifespan=lifespan)


async def _form(request: Request) -> dict[str, str]:
    """FastAPI's own `Form` needs one more package, for files, which are not uploaded here."""
    return dict(parse_qsl((await request.body()).decode()))


Form = Annotated[dict[str, str], Depends(_form)]


def _site() -> str:
    """From the settings, not from the request: whoever sends that could choose where a reset link leads."""
    return os.environ.get("SITE", "https://bookstore.example")


@app.exception_handler(InvalidEmail)
def _invalid(_: Request, error: Exception) -> Response:
    return PlainTextResponse(str(error), 422)


@app.get("/", response_class=HTMLResponse)
def home(request: Request, work: Work) -> Response:
    """The shop window, and the newest orders."""
    orders = work.session.scalars(select(Order).order_by(Order.at.desc()).limit(20)).all()
    shown = {"books": shop.BOOKS, "orders": orders, "new_order": uuid4()}
    return pages.TemplateResponse(request, "home.html", shown)


@app.post("/orders/{order_id}")
def place_order(order_id: UUID, form: Form, work: Work) -> Response:
    """The form comes with the order's id: however often it is sent, there is one order and one mail."""
    if form.get("book") not in shop.BOOKS:
        raise HTTPException(404, "no such book")
    try:
        mail = shop.place_order(
            work, order_id, form.get("email", ""), form["book"], _site(), declined="declined" in form
        )
    except shop.PaymentDeclined:
        raise HTTPException(402, "the payment was declined: there is no order, and no mail") from None
    return RedirectResponse(f"/mails/{mail.key}", 303)


@app.post("/orders/{order_id}/invoice")
def send_invoice(order_id: UUID, work: Work) -> Response:
    """Once, however often it is asked for."""
    order = work.session.get(Order, order_id)
    if order is None:
        raise HTTPException(404, "no such order")
    return RedirectResponse(f"/mails/{shop.send_invoice(work, order).key}", 303)


@app.post("/password-resets", status_code=202, response_class=PlainTextResponse)
def reset_password(form: Form, work: Work) -> str:
    """The answer does not tell whether there is such a customer."""
    shop.reset_password(work, form.get("email", ""), _site())
    return "If you are a customer, a link is on its way to you."


@app.get("/mails/{key}", response_class=HTMLResponse)
def mail(key: str, request: Request, work: Work) -> Response:
    """Where a mail stands."""
    found = status(work.session, key)
    if found is None:
        raise HTTPException(404, "no such mail")
    return pages.TemplateResponse(request, "mail.html", {"mail": found, "words": in_words(found)})


@app.post("/mails/{key}/cancel")
def cancel_mail(key: str, work: Work) -> Response:
    """For the shop's staff: a real shop asks for a log-in here. Which of the two comes first, it or the offer, the
    store decides; the page then says what came of it."""
    cancel(work.session, key, requested_by="shop-admin")
    return RedirectResponse(f"/mails/{key}", 303)
