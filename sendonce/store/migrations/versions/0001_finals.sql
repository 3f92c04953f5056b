-- How mails ended, told to whoever asked for it: to business code in its own transaction, or to a workflow by signal.

-- Who is to be told. workflow_id '': business code, which takes it; else that workflow, by that signal.
CREATE TABLE sendonce.final_watch (
    email_id        uuid NOT NULL CONSTRAINT fk_final_watch_email REFERENCES sendonce.email (id) ON DELETE CASCADE,
    workflow_id     text NOT NULL,
    signal          text NOT NULL,
    CONSTRAINT pk_final_watch PRIMARY KEY (email_id, workflow_id, signal)
);

-- What is to be told, to each of them once for each end: a proof of acceptance, or a requeue, gives a mail another one.
CREATE TABLE sendonce.final (
    id              bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT pk_final PRIMARY KEY,
    email_id        uuid NOT NULL CONSTRAINT fk_final_email REFERENCES sendonce.email (id) ON DELETE CASCADE,
    workflow_id     text NOT NULL,
    signal          text NOT NULL,
    stage           text NOT NULL,
    partial         boolean NOT NULL,
    maybe_accepted  boolean NOT NULL,
    attempts        integer NOT NULL,
    code            integer,
    enhanced        text,
    superseded_by   text,
    at              timestamptz NOT NULL,
    handed_at       timestamptz,                  -- business code took it, the workflow was told, or is gone
    tries           integer NOT NULL DEFAULT 0,
    try_at          timestamptz NOT NULL          -- not before then is the workflow told
);
CREATE INDEX ix_final_email ON sendonce.final (email_id, id);
-- "id + 0": an order that no other index has. The planner would walk the primary key, past all that was taken.
CREATE INDEX ix_final_unhanded ON sendonce.final ((id + 0)) WHERE handed_at IS NULL AND workflow_id = '';
CREATE INDEX ix_final_untold ON sendonce.final (try_at) WHERE handed_at IS NULL AND workflow_id <> '';

-- A trigger, because whoever writes a final stage owes the news: the workers, and functions that callers run.
-- It runs as its owner: whoever may end a mail need not write here.
CREATE FUNCTION sendonce.tell_final() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    INSERT INTO sendonce.final (email_id, workflow_id, signal, stage, partial, maybe_accepted, attempts, code, enhanced,
                                superseded_by, at, try_at)
    SELECT w.email_id, w.workflow_id, w.signal, NEW.stage, NEW.partial, NEW.maybe_accepted, NEW.attempts, NEW.last_code,
        NEW.last_enhanced, CASE WHEN NEW.stage = 'cancelled' THEN NEW.superseded_by END, sendonce.clock(), sendonce.clock()
    FROM sendonce.final_watch AS w WHERE w.email_id = NEW.id
    ORDER BY w.workflow_id, w.signal;
    RETURN NULL;
END
$$;
CREATE TRIGGER tell_final AFTER UPDATE OF stage ON sendonce.email FOR EACH ROW
    WHEN (NEW.watched AND NEW.stage IN ('sent', 'failed', 'dead', 'expired', 'cancelled')
        AND (OLD.stage <> NEW.stage OR OLD.partial <> NEW.partial))
    EXECUTE FUNCTION sendonce.tell_final();

-- A mail's on_final; true when it is left out.
CREATE FUNCTION sendonce.enqueue_on_final(value jsonb) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT CASE jsonb_typeof(value)
        WHEN 'string' THEN value = '"take"'
        WHEN 'object' THEN value - ARRAY['workflow_id', 'signal'] = '{}'
            AND coalesce(jsonb_typeof(value -> 'workflow_id') = 'string' AND jsonb_typeof(value -> 'signal') = 'string', false)
            AND length(value ->> 'workflow_id') BETWEEN 1 AND 1000 AND length(value ->> 'signal') BETWEEN 1 AND 200
            AND concat(value ->> 'workflow_id', value ->> 'signal') !~ '[@\u0001-\u001f\u007f-\u009f\u2028\u2029]' -- an address would be in logs, and in Temporal
        ELSE true
    END
$$;

-- Where the mail of a key stands, or how it ended; no row: there is none, or it has been erased. sendonce.wait asks it.
CREATE FUNCTION sendonce.standing(of_account text, of_key text)
RETURNS TABLE (account text, key text, email_id uuid, stage text, partial boolean, maybe_accepted boolean,
    attempts integer, code integer, enhanced text, superseded_by text, at timestamptz)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT e.account, e.key, e.id, e.stage, e.partial, e.maybe_accepted, e.attempts, e.last_code, e.last_enhanced,
        CASE WHEN e.stage = 'cancelled' THEN e.superseded_by END, coalesce(e.final_at, e.created_at)
    FROM sendonce.email AS e
    WHERE e.id = (SELECT k.email_id FROM sendonce.email_key AS k WHERE k.account = of_account AND k.key = of_key)
$$;

-- How mails that asked for it ended: call it inside the transaction that acts on it. They are handed out once that
-- commits, and again if it does not. It neither commits nor rolls back. In psql:
--
--   BEGIN;
--   SELECT id, account, key, stage, maybe_accepted FROM sendonce.take_finals();
--   COMMIT;
--
-- max_finals: 1 to 1000. Each is handed out once, whoever asks: two callers at once get different ones, and neither waits
-- for the other. Only of mails with "on_final": "take". In the order of ids:
--   id              of the end, unique for ever
--   stage           sent, failed, dead, expired or cancelled
--   partial         sent, and not to everybody
--   maybe_accepted  an offer was never answered: somebody may have the mail all the same
--   attempts        those that were counted
--   code, enhanced  of the last reply
--   superseded_by   the key of the newer mail of its topic that takes its place
--   at              by the store's clock
--
-- At REPEATABLE READ and SERIALIZABLE one that another transaction took meanwhile is SQLSTATE 40001: retry.
CREATE FUNCTION sendonce.take_finals(max_finals integer DEFAULT 100)
RETURNS TABLE (id bigint, account text, key text, email_id uuid, stage text, partial boolean, maybe_accepted boolean,
    attempts integer, code integer, enhanced text, superseded_by text, at timestamptz)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    taken bigint[];
BEGIN
    IF (max_finals BETWEEN 1 AND 1000) IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('sendonce.take_finals: max_finals = %s: write 1 to 1000', max_finals);
    END IF;
    SELECT array_agg(free.id) INTO taken
    FROM (
        SELECT f.id FROM sendonce.final AS f
        WHERE f.handed_at IS NULL AND f.workflow_id = '' AND f.id + 0 > 0
        ORDER BY f.id + 0 LIMIT max_finals
        FOR UPDATE SKIP LOCKED
    ) AS free;
    RETURN QUERY
        WITH handed AS (
            UPDATE sendonce.final AS f SET handed_at = sendonce.clock() WHERE f.id = ANY (taken) RETURNING f.*
        )
        SELECT h.id, e.account, e.key, h.email_id, h.stage, h.partial, h.maybe_accepted, h.attempts, h.code, h.enhanced,
            h.superseded_by, h.at
        FROM handed AS h JOIN sendonce.email AS e ON e.id = h.email_id
        ORDER BY h.id;
END
$$;

COMMENT ON FUNCTION sendonce.take_finals(integer) IS
    'Hand how mails ended to the caller''s transaction: each once, to whoever commits.';
