-- Mails that replace each other: of one account and topic, the newest alone is worth sending. One row per mail with a
-- topic. Who is newer follows from number, which enqueue draws: the order of the calls, not of the commits.
CREATE TABLE sendonce.topic (
    email_id        uuid NOT NULL CONSTRAINT pk_topic PRIMARY KEY
        CONSTRAINT fk_topic_email REFERENCES sendonce.email (id) ON DELETE CASCADE,
    account         text NOT NULL,
    topic           text NOT NULL,
    number          bigint GENERATED ALWAYS AS IDENTITY,
    looked          boolean NOT NULL              -- the older ones that wait have been looked for
);
CREATE INDEX ix_topic_order ON sendonce.topic (account, topic, number);
CREATE INDEX ix_topic_unlooked ON sendonce.topic (number) WHERE NOT looked;
