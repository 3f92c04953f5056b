-- What business code may do with a mail afterwards: ask where it stands, and call it off. Both take the key as it was
-- enqueued, return one row, raise nothing for a mail that is not there, and neither commit nor roll back. In psql:
--
--   BEGIN;
--   SELECT status, stage FROM sendonce.status('order-4711-confirmation');
--   SELECT status, stage FROM sendonce.cancel('order-4711-confirmation');
--   COMMIT;

-- Where the mail stands. status is one of
--   found      the other columns say more
--   removed    it was there, and retention has removed it: only email_id is known
--   missing    nothing was ever accepted under this key
-- offered: it was offered to the provider at least once. recipients: how many by their stage, such as
-- {"accepted": 2, "refused": 1}. No address, no subject and no reply text.
CREATE FUNCTION sendonce.status(key text, account text DEFAULT 'default')
RETURNS TABLE (status text, email_id uuid, stage text, lane text, partial boolean, maybe_accepted boolean,
    cancel_requested boolean, held boolean, offered boolean, attempts integer, last_code integer, last_enhanced text,
    created_at timestamptz, next_attempt_at timestamptz, final_at timestamptz, recipients jsonb)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
        SELECT CASE WHEN e.id IS NULL THEN 'removed' ELSE 'found' END, k.email_id, e.stage, e.lane, e.partial,
            e.maybe_accepted, e.cancel_requested_at IS NOT NULL, e.held_why IS NOT NULL, e.begun_at IS NOT NULL, e.attempts,
            e.last_code, e.last_enhanced, e.created_at, e.next_attempt_at, e.final_at,
            (SELECT coalesce(jsonb_object_agg(r.stage, r.n), '{}')
             FROM (SELECT p.stage, count(*) AS n FROM sendonce.recipient AS p WHERE p.email_id = e.id GROUP BY 1) AS r)
        FROM sendonce.email_key AS k LEFT JOIN sendonce.email AS e ON e.id = k.email_id
        WHERE k.account = status.account AND k.key = status.key;
    IF NOT FOUND THEN
        status := 'missing';
        RETURN NEXT;
    END IF;
END
$$;

COMMENT ON FUNCTION sendonce.status(text, text) IS
    'Where the mail of this key stands: found, removed or missing, and its stage.';

-- Call the mail off, in the caller's transaction: it takes effect once that commits, and not at all if it does not.
-- requested_by: who asked, for the log of transitions; default: the session's user. status is one of
--   cancelled  nothing was offered: it is final, and no copy of it will go out
--   requested  it is being worked on, was tried before, or is unknown: it is not offered again, and what was offered stays
--              offered. It reaches its stage soon after the commit
--   finished   it was final already: see stage
--   removed, missing   as for sendonce.status
--   invalid:requested_by   more than 200 characters, or more than one line
-- The mail's row stays locked until the transaction ends: call it near the end, and for several mails in the order of
-- account and key, or two callers may deadlock (40P01). At REPEATABLE READ and SERIALIZABLE a mail
-- that was changed meanwhile is SQLSTATE 40001: retry.
CREATE FUNCTION sendonce.cancel(key text, account text DEFAULT 'default', requested_by text DEFAULT NULL)
RETURNS TABLE (status text, email_id uuid, stage text)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    actor   constant text := coalesce(nullif(cancel.requested_by, ''), session_user);
    v_now   constant timestamptz := sendonce.clock();
    e       sendonce.email%ROWTYPE;
BEGIN
    IF length(actor) > 200 OR actor ~ '[[:cntrl:]\u2028\u2029]' THEN
        status := 'invalid:requested_by';
        RETURN NEXT;
        RETURN;
    END IF;
    SELECT k.email_id INTO email_id FROM sendonce.email_key AS k
    WHERE k.account = cancel.account AND k.key = cancel.key;
    IF email_id IS NULL THEN
        status := 'missing';
        RETURN NEXT;
        RETURN;
    END IF;
    -- The lock decides: what begins after it is refused, what began before it is seen here.
    SELECT m.* INTO e FROM sendonce.email AS m WHERE m.id = email_id FOR UPDATE;
    IF NOT FOUND THEN
        status := 'removed';
    ELSIF e.stage IN ('sent', 'failed', 'dead', 'expired', 'cancelled') THEN
        status := 'finished';
    ELSIF e.stage = 'pending' AND e.claims = 0 AND e.held_why IS NULL THEN
        UPDATE sendonce.email AS m SET stage = 'cancelled', final_at = v_now, next_attempt_at = NULL,
            cancel_requested_at = coalesce(m.cancel_requested_at, v_now)
        WHERE m.id = e.id;
        INSERT INTO sendonce.transition (email_id, at, from_stage, to_stage, cause, actor)
        VALUES (e.id, v_now, e.stage, 'cancelled', 'cancelled', actor);
        status := 'cancelled';
        e.stage := 'cancelled';
    ELSE
        IF e.cancel_requested_at IS NULL THEN
            UPDATE sendonce.email AS m SET cancel_requested_at = v_now,
                next_attempt_at = CASE WHEN m.stage = 'pending' THEN least(m.next_attempt_at, v_now) ELSE m.next_attempt_at END
            WHERE m.id = e.id;
            INSERT INTO sendonce.transition (email_id, at, from_stage, to_stage, cause, actor)
            VALUES (e.id, v_now, e.stage, e.stage, 'cancel_requested', actor);
        END IF;
        status := 'requested';
    END IF;
    IF status IN ('cancelled', 'requested') THEN
        -- Its workflow, if there is one, is woken, and ends or concludes the rest.
        -- Of an older wish the row is taken over: it may be fulfilled before this commits, with nothing to be seen yet.
        INSERT INTO sendonce.wake (email_id) VALUES (e.id)
        ON CONFLICT ON CONSTRAINT pk_wake DO UPDATE SET at = sendonce.clock();
    END IF;
    stage := e.stage;
    RETURN NEXT;
END
$$;

COMMENT ON FUNCTION sendonce.cancel(text, text, text) IS
    'Call a mail off inside the caller''s transaction; returns cancelled, requested, finished, removed or missing.';
