# syntax=docker/dockerfile:1
# The image of a worker, and of every other command: `docker build -t sendonce .`, `docker run sendonce --version`.
# docs/deployment.md says how it is run, and what of this was tried.
FROM ghcr.io/astral-sh/uv:0.13.0 AS uv

FROM python:3.13-slim-trixie AS build
COPY --from=uv /uv /usr/local/bin/uv
ENV UV_COMPILE_BYTECODE=1 \
    UV_LINK_MODE=copy \
    UV_PYTHON_DOWNLOADS=never \
    UV_PROJECT_ENVIRONMENT=/opt/sendonce
# Add what an exporter of traces or a transport of your own needs in an image that begins FROM this one.
ARG EXTRAS="--extra webhooks --extra uvloop --extra otel --extra ses"
WORKDIR /src
# What changes seldom comes first: with the same lock, this layer is taken from the cache.
COPY pyproject.toml uv.lock ./
# hadolint ignore=SC2086
RUN --mount=type=cache,target=/root/.cache/uv uv sync --locked --no-dev --no-install-project ${EXTRAS}
COPY README.md LICENSE ./
COPY sendonce ./sendonce
# hadolint ignore=SC2086
RUN --mount=type=cache,target=/root/.cache/uv uv sync --locked --no-dev --no-editable ${EXTRAS}

FROM python:3.13-slim-trixie
# No uv, no compiler, no pip: what is not there cannot be used by whoever gets in. Numbers, not names: Kubernetes cannot
# tell that a user with a name is not root.
RUN python -m pip uninstall --yes pip \
    && groupadd --gid 10001 sendonce \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin sendonce
COPY --from=build /opt/sendonce /opt/sendonce
ENV PATH=/opt/sendonce/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    SENDONCE_CONFIG=/etc/sendonce/sendonce.toml
USER 10001:10001
WORKDIR /tmp
# [watch] listen of the worker and the starter. Nothing listens unless the settings say so.
EXPOSE 9464
# A worker drains on SIGTERM: no new mail, and up to [worker] drain_seconds for the answers to what was offered. Whoever
# stops the container must wait longer than that before it kills (--stop-timeout, stop_grace_period,
# terminationGracePeriodSeconds): an answer that is cut is an unknown mail with an alarm.
STOPSIGNAL SIGTERM
# The event loop turns. A store or a Temporal that is away does not make a process unhealthy: it comes back by itself.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9464/healthz', timeout=4)"]
ENTRYPOINT ["sendonce"]
CMD ["worker"]
