-- Erasure of a person: what takes the place of an address, and which erasures are not finished yet.

-- HMAC with SHA-256 (RFC 2104) of an address in lower case, its two keys drawn independently instead of made from one.
-- It says whether two addresses are the same one, to whoever has the keys, and nothing else.
CREATE FUNCTION sendonce.mailbox_digest(mailbox text) RETURNS text LANGUAGE sql STABLE
AS $$
    SELECT 'erased:' || encode(sha256(i.mailbox_keys[2] || sha256(i.mailbox_keys[1]
        || convert_to(lower(mailbox), 'UTF8'))), 'hex')
    FROM sendonce.installation AS i
$$;

-- Who had which person erased, and when. The person is known by the digest only.
CREATE TABLE sendonce.erasure (
    id              bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT pk_erasure PRIMARY KEY,
    digest          text NOT NULL,
    actor           text NOT NULL,
    because         text,
    withdraw        boolean NOT NULL,             -- what has not been offered to the person is not sent to them
    asked_at        timestamptz NOT NULL DEFAULT sendonce.clock(),
    searched_at     timestamptz,                  -- every table was searched
    finished_at     timestamptz,                  -- null: mails of the person are still in flight
    done            jsonb NOT NULL DEFAULT '{}'   -- how many of what
);
CREATE INDEX ix_erasure_digest ON sendonce.erasure (digest);

-- Mails that name the person and were not final then: they are emptied as soon as they are.
CREATE TABLE sendonce.erasure_mail (
    email_id        uuid NOT NULL CONSTRAINT fk_erasure_mail_email REFERENCES sendonce.email (id) ON DELETE CASCADE,
    erasure_id      bigint NOT NULL CONSTRAINT fk_erasure_mail_erasure REFERENCES sendonce.erasure (id) ON DELETE CASCADE,
    ordinals        integer[] NOT NULL,           -- the person's, if they are a recipient
    CONSTRAINT pk_erasure_mail PRIMARY KEY (email_id, erasure_id)
);

-- How far the forgetting of keys has come: a walk through all keys in their order, again and again. One row.
CREATE TABLE sendonce.key_walk (
    one             boolean NOT NULL DEFAULT true CONSTRAINT pk_key_walk PRIMARY KEY
        CONSTRAINT ck_key_walk_one CHECK (one),
    account         text NOT NULL DEFAULT '',
    key             text NOT NULL DEFAULT ''
);
INSERT INTO sendonce.key_walk DEFAULT VALUES;
