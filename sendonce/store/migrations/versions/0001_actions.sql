-- What somebody asked of one mail from outside the command line: each action once, by its id, however often it arrives.
CREATE TABLE sendonce.operator_action (
    email_id        uuid NOT NULL CONSTRAINT fk_operator_action_email REFERENCES sendonce.email (id) ON DELETE CASCADE,
    action_id       text NOT NULL,
    action          text NOT NULL,                -- retry_now, cancel, resolve:sent, …
    actor           text NOT NULL,
    answer          text NOT NULL,                -- 'done', or why not; the same action is answered so again
    stage           text NOT NULL,                -- of the mail then
    at              timestamptz NOT NULL DEFAULT sendonce.clock(),
    CONSTRAINT pk_operator_action PRIMARY KEY (email_id, action_id)
);
