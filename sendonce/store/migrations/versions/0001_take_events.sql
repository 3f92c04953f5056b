-- What came back about mails, handed to business code: call it inside the transaction that acts on the events. They are
-- handed out once that commits, and again if it does not. It neither commits nor rolls back. In psql:
--
--   BEGIN;
--   SELECT id, kind, account, key, mailbox FROM sendonce.take_events(ARRAY['bounced', 'complained']);
--   COMMIT;
--
-- kinds: which of accepted, delayed, soft_bounced, delivered, dropped, bounced, complained; null: all of them. Those that
-- nobody takes stay until their mail goes. max_events: 1 to 1000.
--
-- Each event is handed out once, whoever asks: two callers at once get different ones, and neither waits for the other.
-- In the order of ids, which is not always the order in which things happened. Only authentic events that were joined to
-- their mail; what came before its mail was known is handed out once it has been joined.
--   id            of the event, unique for ever
--   account, key  the mail's, as they were enqueued
--   ordinal       of the recipient in the mail, and
--   mailbox       theirs; an event that names nobody of several has neither, one that names a stranger has no ordinal,
--                 and there is no mailbox any more once the person was erased
--   provider_id   the provider's id of the mail
--   happened_at   by the provider's clock, if it said so
--   received_at   by the store's
--   code, enhanced  the reply of the recipient's server, if it was told
--
-- At REPEATABLE READ and SERIALIZABLE an event that another transaction took meanwhile is SQLSTATE 40001: retry.
CREATE FUNCTION sendonce.take_events(kinds text[] DEFAULT NULL, max_events integer DEFAULT 100)
RETURNS TABLE (id bigint, kind text, account text, key text, email_id uuid, ordinal integer, mailbox text,
    provider_id text, happened_at timestamptz, received_at timestamptz, code integer, enhanced text)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    every constant text[] := ARRAY['accepted', 'delayed', 'soft_bounced', 'delivered', 'dropped', 'bounced', 'complained'];
    wanted  text[] := coalesce(kinds, every);
    near    bigint[];
    beyond  bigint := 0;
    taken   bigint[] := '{}';
BEGIN
    IF NOT wanted <@ every THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('sendonce.take_events: kinds = %s: there are %s', wanted, every);
    END IF;
    IF (max_events BETWEEN 1 AND 1000) IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('sendonce.take_events: max_events = %s: write 1 to 1000', max_events);
    END IF;
    LOOP
        -- The next ones of each kind, by ix_event_unhanded: those of kinds that nobody takes are not read over.
        SELECT array_agg(next.id ORDER BY next.id) INTO near
        FROM (
            SELECT of_kind.id
            FROM unnest(wanted) AS want (kind)
            CROSS JOIN LATERAL (
                SELECT ev.id FROM sendonce.event AS ev
                WHERE ev.kind = want.kind AND ev.id + 0 > beyond
                    AND ev.handed_at IS NULL AND ev.proven AND ev.email_id IS NOT NULL
                ORDER BY ev.id + 0 LIMIT max_events
            ) AS of_kind
            ORDER BY of_kind.id LIMIT max_events
        ) AS next;
        EXIT WHEN near IS NULL;
        -- Of these, the ones that no other transaction is taking. The lock decides, on the row as it is then.
        SELECT taken || coalesce(array_agg(free.id), '{}') INTO taken
        FROM (
            SELECT ev.id FROM sendonce.event AS ev
            WHERE ev.id = ANY (near) AND ev.handed_at IS NULL
            ORDER BY ev.id LIMIT max_events - cardinality(taken)
            FOR UPDATE SKIP LOCKED
        ) AS free;
        EXIT WHEN cardinality(taken) = max_events;
        beyond := near[cardinality(near)];
    END LOOP;
    RETURN QUERY
        WITH handed AS (
            UPDATE sendonce.event AS ev SET handed_at = sendonce.clock() WHERE ev.id = ANY (taken) RETURNING ev.*
        )
        SELECT h.id, h.kind, e.account, e.key, h.email_id, h.ordinal,
            -- What has taken the place of an erased address is nobody's.
            CASE WHEN coalesce(r.mailbox, h.recipient) NOT LIKE 'erased:%' THEN coalesce(r.mailbox, nullif(h.recipient, '')) END,
            coalesce(nullif(h.provider_id, ''), r.provider_id), h.happened_at, h.received_at, h.code, h.enhanced
        FROM handed AS h
        JOIN sendonce.email AS e ON e.id = h.email_id
        LEFT JOIN sendonce.recipient AS r ON r.email_id = h.email_id AND r.ordinal = h.ordinal
        ORDER BY h.id;
END
$$;

COMMENT ON FUNCTION sendonce.take_events(text[], integer) IS
    'Hand what came back about mails to the caller''s transaction: each event once, to whoever commits.';
