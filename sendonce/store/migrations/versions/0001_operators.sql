-- What operators decide about many mails at once, and what they looked at.

-- The kill switch: mail of a lane, template, tenant (its fairness key) or account that nobody tries. ended_at null: it
-- stands. Ended ones stay: the age of a mail does not count the time in which it was held back. There are few.
CREATE TABLE sendonce.hold (
    id              bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT pk_hold PRIMARY KEY,
    scope           text NOT NULL CONSTRAINT ck_hold_scope CHECK (scope IN ('lane', 'template', 'tenant', 'account')),
    name            text NOT NULL CONSTRAINT ck_hold_name CHECK (name <> ''),
    since           timestamptz NOT NULL DEFAULT sendonce.clock(),
    actor           text NOT NULL,
    why             text NOT NULL,
    ended_at        timestamptz,
    ended_by        text
);
CREATE UNIQUE INDEX ix_hold_standing ON sendonce.hold (scope, name) WHERE ended_at IS NULL;

-- Is mail with these on hold? via: the account that it would go by. A function, because its plan is kept by the session:
-- as a part of claim and begin it would be planned with each of them. VOLATILE: it sees what was committed while its
-- caller waited for a lock.
CREATE FUNCTION sendonce.on_hold(lane text, template text, tenant text, account text, via text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM sendonce.hold h
        WHERE h.ended_at IS NULL AND CASE h.scope
            WHEN 'lane' THEN h.name = lane
            WHEN 'template' THEN h.name = template
            WHEN 'tenant' THEN h.name = tenant
            ELSE h.name IN (account, via) END);
END
$$;

-- For how long such mail was on hold between the two. Several holds at once count once.
CREATE FUNCTION sendonce.held_back(
    lane text, template text, tenant text, account text, since timestamptz, until timestamptz
) RETURNS interval
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM sendonce.hold) THEN
        RETURN interval '0';
    END IF;
    RETURN coalesce((
        SELECT sum(upper(held.span) - lower(held.span)) FROM (
            SELECT unnest(range_agg(tstzrange(
                greatest(h.since, held_back.since), greatest(h.since, held_back.since, coalesce(h.ended_at, until))
            ))) AS span
            FROM sendonce.hold h
            WHERE h.name = CASE h.scope
                WHEN 'lane' THEN lane WHEN 'template' THEN template WHEN 'tenant' THEN tenant ELSE account END
        ) AS held), interval '0');
END
$$;

-- A mail that was sent again under a new key. Of the old one nothing but its key may be left.
CREATE TABLE sendonce.sent_again (
    email_id        uuid NOT NULL CONSTRAINT pk_sent_again PRIMARY KEY
        CONSTRAINT fk_sent_again_email REFERENCES sendonce.email (id) ON DELETE CASCADE,
    of_email        uuid NOT NULL,
    at              timestamptz NOT NULL DEFAULT sendonce.clock(),
    actor           text NOT NULL
);
CREATE INDEX ix_sent_again_of ON sendonce.sent_again (of_email);

-- Who had personal data shown, and of which mail. No foreign key: it outlives the mail.
CREATE TABLE sendonce.reveal (
    id              bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT pk_reveal PRIMARY KEY,
    at              timestamptz NOT NULL DEFAULT sendonce.clock(),
    actor           text NOT NULL,
    command         text NOT NULL,
    email_id        uuid,
    account         text,
    key             text
);
CREATE INDEX ix_reveal_email ON sendonce.reveal (email_id) WHERE email_id IS NOT NULL;

-- Who has taken note of an alarm. It stays open until what caused it ends.
CREATE TABLE sendonce.acknowledgement (
    alarm_id        bigint NOT NULL CONSTRAINT pk_acknowledgement PRIMARY KEY
        CONSTRAINT fk_acknowledgement_alarm REFERENCES sendonce.alarm (id) ON DELETE CASCADE,
    at              timestamptz NOT NULL DEFAULT sendonce.clock(),
    actor           text NOT NULL,
    note            text
);
