-- The store: who holds which mail, what was offered, what was answered. Times are decided by sendonce.clock() only.

CREATE SCHEMA IF NOT EXISTS sendonce;

-- The one clock. STABLE, so that "due" is an index condition; the test kit replaces the function in its own database.
CREATE FUNCTION sendonce.clock() RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE
AS $$ SELECT clock_timestamp() $$;

-- One row: who we are towards providers. A restored copy must get a new id, or two environments share provider keys.
CREATE TABLE sendonce.installation (
    one             boolean NOT NULL DEFAULT true CONSTRAINT pk_installation PRIMARY KEY
        CONSTRAINT ck_installation_one CHECK (one),
    id              uuid NOT NULL DEFAULT gen_random_uuid(),
    notify          boolean NOT NULL DEFAULT true,
    -- The oldest release that still runs on this schema, by the revision that it needs. A migration that takes away what
    -- an earlier release uses raises it.
    oldest_revision text NOT NULL DEFAULT '0001',
    -- What proves that a bounce is about a mail of ours. The first one makes proofs, all of them verify.
    secrets         bytea[] NOT NULL DEFAULT ARRAY[sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()))]
        CONSTRAINT ck_installation_secrets CHECK (cardinality(secrets) > 0),
    -- Keys of the digest that takes the place of an erased address: the inner and the outer one, a SHA-256 block each.
    -- They never change: a suppression that is kept as a digest would be forgotten with them.
    mailbox_keys    bytea[] NOT NULL DEFAULT ARRAY[
        sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()))
            || sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())),
        sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()))
            || sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()))]
        CONSTRAINT ck_installation_mailbox_keys CHECK (cardinality(mailbox_keys) = 2),
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp()
);
INSERT INTO sendonce.installation DEFAULT VALUES;

-- Every key ever accepted, and the only unique index on keys. Retention empties the mail and leaves this row.
CREATE TABLE sendonce.email_key (
    account         text NOT NULL,
    key             text NOT NULL,
    email_id        uuid NOT NULL,
    digest          bytea NOT NULL,
    created_at      timestamptz NOT NULL,
    CONSTRAINT pk_email_key PRIMARY KEY (account, key)
);

-- The hot row: small, and updated by every step of a mail.
CREATE TABLE sendonce.email (
    id              uuid NOT NULL CONSTRAINT pk_email PRIMARY KEY,
    account         text NOT NULL,
    key             text NOT NULL,
    lane            text NOT NULL,
    to_domains      text[] NOT NULL DEFAULT '{}', -- of all recipients, each once, in A-labels
    from_domain     text NOT NULL DEFAULT '',     -- of the From address, in A-labels: what a sender fault is scoped to
    template        text NOT NULL DEFAULT '',     -- its name; empty: the content is its own
    stage           text NOT NULL DEFAULT 'pending' CONSTRAINT ck_email_stage CHECK (stage IN
        ('pending', 'claimed', 'transmitting', 'unknown', 'sent', 'failed', 'dead', 'expired', 'cancelled')),
    rest_stage      text NOT NULL DEFAULT 'pending' CONSTRAINT ck_email_rest_stage CHECK (rest_stage IN
        ('pending', 'unknown')),                  -- what a release returns the row to
    partial         boolean NOT NULL DEFAULT false,
    maybe_accepted  boolean NOT NULL DEFAULT false,
    created_at      timestamptz NOT NULL,
    send_after      timestamptz,
    expires_at      timestamptz,
    next_attempt_at timestamptz,                  -- null: held, nobody tries until evidence or an operator
    retry           jsonb,                        -- the message's own retry policy, else the lane's
    unknown_policy  text CONSTRAINT ck_email_unknown_policy CHECK (unknown_policy IN ('hold', 'resend')),
    -- what the next attempt is
    open_ordinals   integer[] NOT NULL DEFAULT '{}', -- recipients still to be served
    generation      integer NOT NULL DEFAULT 1,
    generation_open boolean NOT NULL DEFAULT false,  -- its pins stand: the next attempt repeats them exactly
    -- counters
    attempts        integer NOT NULL DEFAULT 0,   -- counted ones
    claims          integer NOT NULL DEFAULT 0,
    lapses          integer NOT NULL DEFAULT 0,   -- claims that lapsed before begin while the store was up
    resends         integer NOT NULL DEFAULT 0,
    requeue_floor   integer NOT NULL DEFAULT 0,
    first_attempt_at timestamptz,
    pause_base      interval NOT NULL DEFAULT '0',
    -- who holds it
    lease_id        uuid,                         -- also the attempt's id
    lease_until     timestamptz,
    lease_worker    text,
    lease_alone     boolean NOT NULL DEFAULT false,
    claimed_at      timestamptz,
    begun_at        timestamptz,
    answer_by       timestamptz,
    -- silence
    replay_until    timestamptz,                  -- a documented replay under the provider key is allowed until then
    unknown_since   timestamptz,
    close_at        timestamptz,                  -- an unsettled unknown is closed then
    alarm_at        timestamptz,                  -- an unknown is alarmed then
    look_up_at      timestamptz,                  -- the provider is asked about an unknown then, if it can be asked
    look_ups        integer NOT NULL DEFAULT 0,
    -- workflow
    started_at      timestamptz,                  -- a starter stamped it
    seen_at         timestamptz,                  -- a workflow asked: the proof that one exists
    starts          integer NOT NULL DEFAULT 0,
    fairness_key    text NOT NULL DEFAULT '',     -- whose mail it is: they take turns
    has_topic       boolean NOT NULL DEFAULT false, -- sendonce.topic says which
    watched         boolean NOT NULL DEFAULT false, -- somebody is to be told how it ends: sendonce.final_watch
    slot_account    text,                         -- whose rates its next attempt has a slot of
    slot_until      timestamptz,                  -- the slot is void then
    -- decisions
    cancel_requested_at timestamptz,
    superseded_by   text,                         -- the key of the newer mail of its topic that takes its place
    held_why        text,
    held_since      timestamptz,                  -- a fault of ours (a template, the set-up) keeps it waiting since then
    final_at        timestamptz,
    last_code       integer,
    last_enhanced   text,
    -- retention
    content_erased_at timestamptz                 -- since then neither content nor texts of replies are kept
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 1);

-- Never started and due soon: what a starter looks at.
CREATE INDEX ix_email_unstarted ON sendonce.email (lane, account, fairness_key, next_attempt_at, id)
    WHERE stage = 'pending' AND started_at IS NULL;
-- Whose deadline passes before it is tried.
CREATE INDEX ix_email_expiring ON sendonce.email (expires_at)
    WHERE stage = 'pending' AND expires_at IS NOT NULL;
-- Started or seen, and waiting: what the overdue rule looks at, and what admission counts.
-- What is included, here and below, is what is counted by the gauges, which read nothing but the index.
CREATE INDEX ix_email_waiting ON sendonce.email (lane, next_attempt_at, id) INCLUDE (account, stage)
    WHERE stage IN ('pending', 'unknown') AND started_at IS NOT NULL;
-- Held by a process: few rows at any time.
CREATE INDEX ix_email_held ON sendonce.email (lane, id) INCLUDE (account, stage) WHERE stage IN ('claimed', 'transmitting');
CREATE INDEX ix_email_close ON sendonce.email (close_at) WHERE stage = 'unknown';
CREATE INDEX ix_email_look_up ON sendonce.email (account, look_up_at) WHERE stage = 'unknown';
CREATE INDEX ix_email_alarm ON sendonce.email (alarm_at) WHERE alarm_at IS NOT NULL;
-- Whose content is still there once they are final, and which rows are to be emptied.
CREATE INDEX ix_email_content_kept ON sendonce.email (lane, template, final_at)
    WHERE final_at IS NOT NULL AND content_erased_at IS NULL;
CREATE INDEX ix_email_final ON sendonce.email (final_at, id) WHERE final_at IS NOT NULL;
CREATE INDEX ix_email_created ON sendonce.email (created_at, id);
CREATE INDEX ix_email_stage ON sendonce.email (stage, created_at, id) WHERE stage <> 'sent';

-- What was asked for. Never changes until retention or an erasure empties it: content is {} then.
CREATE TABLE sendonce.email_content (
    email_id        uuid NOT NULL CONSTRAINT pk_email_content PRIMARY KEY
        CONSTRAINT fk_email_content_email REFERENCES sendonce.email (id) ON DELETE CASCADE,
    message_id      text NOT NULL,                -- RFC 5322 3.6.4, minted at intake, the same on every attempt
    content         jsonb NOT NULL,               -- OutgoingEmail without its attachments' bytes
    requested_by    text,
    traceparent     text                          -- the span that enqueued it, as W3C Trace Context writes it
);

-- The files of a mail, or the message itself where content has "mime": true.
CREATE TABLE sendonce.attachment (
    email_id        uuid NOT NULL CONSTRAINT fk_attachment_email REFERENCES sendonce.email (id) ON DELETE CASCADE,
    ordinal         integer NOT NULL,
    filename        text NOT NULL,
    content_type    text NOT NULL,
    content_id      text,
    inline          boolean NOT NULL DEFAULT false,
    alternative     boolean NOT NULL DEFAULT false,
    content         bytea NOT NULL,
    CONSTRAINT pk_attachment PRIMARY KEY (email_id, ordinal)
);

-- One row per mailbox of the envelope, however often it is named in To, Cc and Bcc.
CREATE TABLE sendonce.recipient (
    email_id        uuid NOT NULL CONSTRAINT fk_recipient_email REFERENCES sendonce.email (id) ON DELETE CASCADE,
    ordinal         integer NOT NULL,
    mailbox         text NOT NULL,
    stage           text NOT NULL DEFAULT 'outstanding' CONSTRAINT ck_recipient_stage CHECK (stage IN
        ('outstanding', 'accepted', 'refused', 'deferred', 'unanswered', 'suppressed')),
    code            integer,
    enhanced        text,
    reply_text      text,
    provider_id     text,
    attempt_id      uuid,
    changed_at      timestamptz,
    delivery        text CONSTRAINT ck_recipient_delivery CHECK (delivery IN     -- what became of it afterwards
        ('accepted', 'delayed', 'soft_bounced', 'delivered', 'dropped', 'bounced', 'complained')),
    delivery_at     timestamptz,
    CONSTRAINT pk_recipient PRIMARY KEY (email_id, ordinal)
);
CREATE INDEX ix_recipient_mailbox ON sendonce.recipient (lower(mailbox));
CREATE INDEX ix_recipient_provider ON sendonce.recipient (provider_id) WHERE provider_id IS NOT NULL;

-- The rendered bytes, insert-once: whoever comes later sends what this table returns. slot is 'mime', or
-- 'request:<generation>:<digest of the URL>:<digest of the envelope>'.
CREATE TABLE sendonce.pinned (
    email_id        uuid NOT NULL CONSTRAINT fk_pinned_email REFERENCES sendonce.email (id) ON DELETE CASCADE,
    slot            text NOT NULL,
    method          text NOT NULL DEFAULT '',
    url             text NOT NULL DEFAULT '',
    headers         jsonb NOT NULL DEFAULT '[]',
    body            bytea NOT NULL,
    digest          bytea NOT NULL,
    pinned_at       timestamptz NOT NULL DEFAULT sendonce.clock(),
    CONSTRAINT pk_pinned PRIMARY KEY (email_id, slot)
);

-- What a provider key stands for. Inserted by the begin that opens it; never changed.
CREATE TABLE sendonce.generation (
    email_id        uuid NOT NULL CONSTRAINT fk_generation_email REFERENCES sendonce.email (id) ON DELETE CASCADE,
    generation      integer NOT NULL,
    slot            text NOT NULL,
    digest          bytea NOT NULL,
    envelope        integer[] NOT NULL,
    provider_key    text NOT NULL,
    identity        text NOT NULL,                -- the scope in which the provider knows the key
    account         text NOT NULL,                -- it was offered to: the mail's own, or the fallback of that one
    first_begun_at  timestamptz NOT NULL,
    CONSTRAINT pk_generation PRIMARY KEY (email_id, generation)
);

-- One row per claim. id is the lease's id. Facts are appended to it whether or not the lease still stands.
CREATE TABLE sendonce.attempt (
    id              uuid NOT NULL CONSTRAINT pk_attempt PRIMARY KEY,
    email_id        uuid NOT NULL CONSTRAINT fk_attempt_email REFERENCES sendonce.email (id) ON DELETE CASCADE,
    number          integer NOT NULL,             -- the n-th claim of this mail
    generation      integer NOT NULL,
    account         text NOT NULL,                -- it went by: the mail's own, or the fallback of that one
    mode            text NOT NULL CONSTRAINT ck_attempt_mode CHECK (mode IN ('send', 'replay', 'resend')),
    worker          text NOT NULL,
    claimed_at      timestamptz NOT NULL,
    begun_at        timestamptz,
    offered         integer[] NOT NULL DEFAULT '{}',
    answers         jsonb NOT NULL DEFAULT '{}',  -- recipient ordinal -> outcome
    counted         boolean NOT NULL DEFAULT false,
    ended_at        timestamptz,
    ended_why       text
);
CREATE INDEX ix_attempt_email ON sendonce.attempt (email_id, number);

-- Proofs that are not an attempt's own answer: look-ups, webhooks, DSNs, an operator, the workflow engine.
CREATE TABLE sendonce.evidence (
    id              bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT pk_evidence PRIMARY KEY,
    email_id        uuid NOT NULL CONSTRAINT fk_evidence_email REFERENCES sendonce.email (id) ON DELETE CASCADE,
    ordinal         integer NOT NULL,
    accepted        boolean NOT NULL,
    generation      integer NOT NULL,
    source          text NOT NULL,
    event_id        text NOT NULL,                -- the source's own id: the same event twice is one row
    actor           text NOT NULL,
    recorded_at     timestamptz NOT NULL DEFAULT sendonce.clock(),
    after_final     boolean NOT NULL DEFAULT false,
    CONSTRAINT uq_evidence_event UNIQUE (email_id, source, event_id, ordinal)
);

-- Every change of stage, with its cause and who did it.
CREATE TABLE sendonce.transition (
    id              bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT pk_transition PRIMARY KEY,
    email_id        uuid NOT NULL CONSTRAINT fk_transition_email REFERENCES sendonce.email (id) ON DELETE CASCADE,
    at              timestamptz NOT NULL DEFAULT sendonce.clock(),
    from_stage      text,
    to_stage        text NOT NULL,
    cause           text NOT NULL,
    actor           text NOT NULL,
    attempt_id      uuid,
    because         text                          -- an operator's reason
);
CREATE INDEX ix_transition_email ON sendonce.transition (email_id, id);

-- Append-only; closing an alarm is another row. Written in the transaction that caused it. What becomes of an alarm, and
-- who was told, is in 0001_watching.sql.
CREATE TABLE sendonce.alarm (
    id              bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT pk_alarm PRIMARY KEY,
    at              timestamptz NOT NULL DEFAULT sendonce.clock(),
    kind            text NOT NULL,
    email_id        uuid,
    account         text,
    detail          text NOT NULL DEFAULT '',     -- codes and ids only
    closes          bigint CONSTRAINT fk_alarm_closes REFERENCES sendonce.alarm (id)
);
CREATE INDEX ix_alarm_email ON sendonce.alarm (email_id, kind);
CREATE INDEX ix_alarm_unserved ON sendonce.alarm (id) WHERE kind = 'unserved';
CREATE INDEX ix_alarm_paused ON sendonce.alarm (account) WHERE kind = 'account_paused' AND closes IS NULL;
CREATE INDEX ix_alarm_closes ON sendonce.alarm (closes) WHERE closes IS NOT NULL;

-- A provider account that is paused for the workers that hold these settings, and the one probe that may pass. The
-- digest keeps a worker with an old password from pausing an account that works with the new one. from_domain: only
-- mail from that domain is concerned; '': all of it. No row: never paused.
CREATE TABLE sendonce.account (
    name            text NOT NULL,
    settings_digest text NOT NULL,
    from_domain     text NOT NULL DEFAULT '',
    paused_at       timestamptz,
    pause_why       text,
    faults          integer NOT NULL DEFAULT 0,
    probe_at        timestamptz,
    probe_until     timestamptz,                  -- the probe that is under way is given up then
    probe_taken_at  timestamptz,
    probe_email     uuid,                         -- the mail that is that probe
    paused_total    interval NOT NULL DEFAULT '0',
    fault_email     uuid,                         -- the mail that met the last fault: others probe first
    worked_at       timestamptz,                  -- when the last pause was ended by a mail that passed
    CONSTRAINT pk_account PRIMARY KEY (name, settings_digest, from_domain)
);

-- What was used of an account's rates: see sendonce/rates.py.
CREATE TABLE sendonce.rate (
    account         text NOT NULL CONSTRAINT pk_rate PRIMARY KEY,
    version         bigint NOT NULL DEFAULT 0,
    state           jsonb NOT NULL DEFAULT '{}'
);

-- Addresses that an account must not write to. mailbox: all of it in lower case, or the digest of an erased address.
CREATE TABLE sendonce.suppression (
    account         text NOT NULL,
    mailbox         text NOT NULL,
    reason          text NOT NULL CONSTRAINT ck_suppression_reason CHECK (reason IN ('bounced', 'complained', 'manual')),
    source          text NOT NULL,
    email_id        uuid,                         -- the mail that it was learnt from
    actor           text NOT NULL,
    note            text,
    at              timestamptz NOT NULL DEFAULT sendonce.clock(),
    CONSTRAINT pk_suppression PRIMARY KEY (account, mailbox)
);

-- What came back about a mail, each event once. email_id null: it names no mail that is known yet, and waits for one.
-- Business code takes events by sendonce.take_events. (By id it would miss those that commit out of order.)
CREATE TABLE sendonce.event (
    id              bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT pk_event PRIMARY KEY,
    account         text NOT NULL,
    source          text NOT NULL,
    event_id        text NOT NULL,
    kind            text NOT NULL,
    proven          boolean NOT NULL,             -- false: anyone could have written it. It settles and suppresses nothing
    happened_at     timestamptz,
    received_at     timestamptz NOT NULL DEFAULT sendonce.clock(),
    email_id        uuid CONSTRAINT fk_event_email REFERENCES sendonce.email (id) ON DELETE CASCADE,
    ordinal         integer,
    claimed_id      text NOT NULL,                -- our own id, as the source carried it back
    provider_id     text NOT NULL,
    message_id      text NOT NULL,
    recipient       text NOT NULL,
    code            integer,
    enhanced        text,
    reply_text      text,
    handed_at       timestamptz,                  -- business code took it
    CONSTRAINT uq_event UNIQUE (account, source, event_id, recipient)
);
CREATE INDEX ix_event_email ON sendonce.event (email_id, id) WHERE email_id IS NOT NULL;
CREATE INDEX ix_event_parked ON sendonce.event (received_at) WHERE email_id IS NULL;
-- "id + 0": an order that no other index has. The planner would walk the primary key, past all that nobody takes.
CREATE INDEX ix_event_unhanded ON sendonce.event (kind, (id + 0))
    WHERE handed_at IS NULL AND proven AND email_id IS NOT NULL;

-- Mails whose workflows are to be woken: something has happened that they do not know.
CREATE TABLE sendonce.wake (
    email_id        uuid NOT NULL CONSTRAINT pk_wake PRIMARY KEY,
    at              timestamptz NOT NULL DEFAULT sendonce.clock()
);

-- Processes that are alive, so that others see a dead one.
CREATE TABLE sendonce.process (
    id              text NOT NULL CONSTRAINT pk_process PRIMARY KEY,
    kind            text NOT NULL,
    lanes           text[] NOT NULL,              -- those it serves
    started_at      timestamptz NOT NULL,
    beat_at         timestamptz NOT NULL,
    replaces        text                          -- a process that fell silent before, whose place this one has taken
);
