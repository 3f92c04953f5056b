-- Alarms told, and who is alive to tell them.

-- What changes about an alarm: the alarm itself never does. A row for each, made by the trigger below in the transaction
-- that raised it.
CREATE TABLE sendonce.alarm_state (
    alarm_id        bigint NOT NULL CONSTRAINT pk_alarm_state PRIMARY KEY
        CONSTRAINT fk_alarm_state_alarm REFERENCES sendonce.alarm (id) ON DELETE CASCADE,
    kind            text NOT NULL,
    open            boolean NOT NULL,             -- false: another row has ended it, or it is such a row
    taken_at        timestamptz                   -- since then it is part of the notices below
);
CREATE INDEX ix_alarm_state_new ON sendonce.alarm_state (alarm_id) WHERE taken_at IS NULL;
CREATE INDEX ix_alarm_state_open ON sendonce.alarm_state (kind) WHERE open;

CREATE FUNCTION sendonce.alarm_raised() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    INSERT INTO sendonce.alarm_state (alarm_id, kind, open) SELECT f.id, f.kind, f.closes IS NULL FROM fresh f;
    UPDATE sendonce.alarm_state s SET open = false FROM fresh f WHERE s.alarm_id = f.closes AND s.open;
    RETURN NULL;
END
$$;
CREATE TRIGGER alarm_raised AFTER INSERT ON sendonce.alarm REFERENCING NEW TABLE AS fresh
    FOR EACH STATEMENT EXECUTE FUNCTION sendonce.alarm_raised();

-- What is to be told to whom: alarms of one kind and account, or the ends of such, are one message for each sink.
CREATE TABLE sendonce.alarm_notice (
    sink            text NOT NULL,
    kind            text NOT NULL,
    account         text NOT NULL DEFAULT '',     -- '': of no account
    ended           boolean NOT NULL,             -- it is about ends of alarms
    waiting         bigint NOT NULL DEFAULT 0,    -- alarms that the next message is about
    examples        bigint[] NOT NULL DEFAULT '{}', -- the first few of them
    first_at        timestamptz NOT NULL,         -- the oldest of them
    last_at         timestamptz NOT NULL,         -- the newest, told or not
    told            integer NOT NULL DEFAULT 0,   -- messages since it was last quiet
    due_at          timestamptz NOT NULL,         -- no message before that
    failures        integer NOT NULL DEFAULT 0,   -- tries of this message that failed
    lease           uuid,                         -- the process that tells it at this moment
    lease_until     timestamptz,
    CONSTRAINT pk_alarm_notice PRIMARY KEY (sink, kind, account, ended)
);
CREATE INDEX ix_alarm_notice_due ON sendonce.alarm_notice (sink, due_at) WHERE waiting > 0;

-- What is wrong at this moment and is about no single mail: each has one alarm until it is over.
CREATE TABLE sendonce.alarm_condition (
    kind            text NOT NULL,
    about           text NOT NULL,                -- a loop, a lane, an account
    alarm_id        bigint,
    since           timestamptz NOT NULL DEFAULT sendonce.clock(),
    CONSTRAINT pk_alarm_condition PRIMARY KEY (kind, about)
);

-- The loops of each process, when each last came round, and how long that may take.
CREATE TABLE sendonce.process_loop (
    process_id      text NOT NULL CONSTRAINT fk_process_loop_process REFERENCES sendonce.process (id) ON DELETE CASCADE,
    name            text NOT NULL,
    beat_at         timestamptz NOT NULL,
    patience        double precision NOT NULL,    -- seconds
    CONSTRAINT pk_process_loop PRIMARY KEY (process_id, name)
);

-- Open transactions of this database, the prepared ones too (pid null): since when, and of what session. It runs as its
-- owner, who may see more than a worker; what the owner may not see either is hidden, and its beginning null. Never what
-- a session has said: that may hold anything.
CREATE FUNCTION sendonce.open_transactions()
RETURNS TABLE (pid integer, began timestamptz, application text, state text, hidden boolean)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT a.pid, a.xact_start, a.application_name, a.state, a.backend_type IS NULL
    FROM pg_stat_activity AS a
    WHERE a.datname = current_database() AND a.usesysid IS NOT NULL
        AND (a.backend_type IS NULL OR a.backend_type = 'client backend' AND a.xact_start IS NOT NULL)
    UNION ALL
    SELECT NULL, p.prepared, NULL, 'prepared', false FROM pg_prepared_xacts AS p WHERE p.database = current_database()
$$;

-- One row: what was counted last, for all processes. Counting costs; reading this does not.
CREATE TABLE sendonce.gauge (
    one             boolean NOT NULL DEFAULT true CONSTRAINT pk_gauge PRIMARY KEY CONSTRAINT ck_gauge_one CHECK (one),
    at              timestamptz NOT NULL DEFAULT '-infinity',
    sample          jsonb NOT NULL DEFAULT '{}',
    history         jsonb NOT NULL DEFAULT '[]'   -- what was due by account in the last minutes
);
INSERT INTO sendonce.gauge DEFAULT VALUES;
