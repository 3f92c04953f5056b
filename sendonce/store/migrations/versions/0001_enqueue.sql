-- Intake: the one way in, for the Python API and for every other language. Call it inside the transaction that records
-- the business event; it neither commits nor rolls back, and it returns a status instead of raising. In psql:
--
--   BEGIN;
--   SELECT status, email_id, stage FROM sendonce.enqueue(
--       '{"key": "order-4711-confirmation",
--         "sender": "Bookstore <orders@bookstore.example>",
--         "to": ["Ann <ann@example.org>"],
--         "subject": "Your order 4711",
--         "text": "Thank you."}',
--       '[{"filename": "terms.txt", "content_type": "text/plain", "content": "VGhhbmsgeW91Lg=="}]');
--   COMMIT;
--
-- message, a JSON object; what is left out or null means the default, an empty text a part left out:
--   key              required, [A-Za-z0-9._:-]{1,100}. Visible in Temporal and to the provider: no personal data.
--   account, lane    [a-z0-9_-]{1,50}; "default"
--   sender           required. An address is "Ann <ann@example.org>", or {"email": "ann@example.org", "name": "Ann"}.
--   to, cc, bcc      an address or an array of them; 1 to 1000 different mailboxes in all. Domains in A-labels (xn--…).
--   reply_to         the same form
--   envelope_sender  a mailbox for bounces; "" is the null sender; default: the sender's mailbox
--   subject          one line
--   text, html       or else: template, parameters (an object of at most 50 levels, numbers below 1e100) and locale ("de-AT")
--   rendered         true: subject, text and html were made from the template named, and are not compared
--   headers          {"X-Name": "value"}; none that Sendonce sets itself
--   send_after, expires_at   ISO 8601 with an offset: "2030-01-31T09:00:00+01:00"
--   retry, unknown   this mail's own retry policy (an object, by the bounds of a lane's) and policy for silence ("hold" or "resend")
--   requested_by     who asked, for the log of transitions; default: the session's user
--   fairness_key     whose mail it is: mail of one account and lane takes turns by it
--   topic            a newer mail of the same account and topic takes the place of those that were not offered yet
--   on_final         "take": sendonce.take_finals hands over how it ended; {"workflow_id", "signal"}: that workflow is told
--   mime             true: the one attachment is the whole message, with CRLF line ends and without Bcc; sender, to, cc and
--                    bcc say whom it is from and goes to, subject what to show; none of text, html, template and headers
--   message_id       the Message-ID of such a message, if it has one
--   traceparent      the caller's span, as W3C Trace Context writes it; what is none is left out, and it is not compared
-- attachments, a JSON array of {"filename", "content_type", "content_id", "inline", "alternative",
-- "content" (base64)}.
-- notify: false keeps this call from sending NOTIFY; the starter's polling finds the mail all the same.
--
-- status is one of
--   created          written; it is sent once the transaction commits
--   exists           the key is taken by the same content: email_id and stage are those of the mail that is there
--                    (stage is null when retention has removed it). Nothing was written.
--   conflict         the key is taken by other content. Nothing was written.
--   invalid:<field>  that part cannot be accepted. Nothing was written.
-- and the transaction is usable after each. Content is everything but scheduling, expiry, policies, lane, requested_by,
-- fairness_key, topic and on_final. Numbers in parameters are compared as written: 1 and 1.0 are different content.
--
-- A caller that meets a concurrent, uncommitted call with the same key waits for it. At REPEATABLE READ and
-- SERIALIZABLE it then gets SQLSTATE 40001, as for any concurrent update, and is to retry its transaction. Two
-- transactions that enqueue the same keys in opposite order deadlock (40P01): sort by account and key.
--
-- The worker checks every mail again, and more strictly, before it is rendered.

-- One address as {"email", "name", "mailbox"}; null when it cannot be one. The member "mailbox" of an object is for
-- callers that convert a domain to A-labels themselves. Called by enqueue only, which sets search_path.
CREATE FUNCTION sendonce.enqueue_address(value jsonb) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
DECLARE
    plain   text;
    parts   text[];
    email   text;
    name    text := '';
    mailbox text;
    local   text;
    domain  text;
BEGIN
    IF jsonb_typeof(value) = 'string' THEN
        plain := btrim(value #>> '{}', E' \t');
        parts := regexp_match(plain, '^(.*)<([^<]*)>$');
        IF parts IS NULL THEN
            email := plain;
        ELSE
            name := btrim(parts[1], E' \t');
            email := btrim(parts[2], E' \t');
            IF name ~ '^".*"$' AND length(name) > 1 THEN
                name := regexp_replace(substr(name, 2, length(name) - 2), '\\(.)', '\1', 'g');
            END IF;
        END IF;
        mailbox := email;
    ELSIF jsonb_typeof(value) = 'object' THEN
        IF value - ARRAY['email', 'name', 'mailbox'] <> '{}'
            OR jsonb_typeof(value -> 'email') IS DISTINCT FROM 'string'
            OR jsonb_typeof(value -> 'name') NOT IN ('string', 'null')
            OR jsonb_typeof(value -> 'mailbox') NOT IN ('string', 'null')
        THEN
            RETURN NULL;
        END IF;
        email := value ->> 'email';
        name := coalesce(value ->> 'name', '');
        mailbox := coalesce(value ->> 'mailbox', email);
    ELSE
        RETURN NULL;
    END IF;
    parts := regexp_match(mailbox, '^(.+)@([^@]+)$');
    -- COLLATE "C": letters outside ASCII never take part, and a Turkish database does not turn I into a dotless i.
    local := parts[1];
    domain := lower(parts[2] COLLATE "C");
    IF domain IS NULL
        OR left(email, length(local) + 1) <> local || '@'
        OR local || name ~ '[\u0001-\u001f\u007f-\u009f\u2028\u2029]'
        OR octet_length(local) > 64 OR octet_length(local) + octet_length(domain) > 253
        OR domain !~ '^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*$'
    THEN
        RETURN NULL;
    END IF;
    RETURN jsonb_build_object('email', email, 'name', name, 'mailbox', local || '@' || domain);
END
$$;

-- An address or an array of them, as an array of enqueue_address; null when one of them cannot be an address.
CREATE FUNCTION sendonce.enqueue_addresses(value jsonb) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
DECLARE
    found jsonb;
    wrong boolean;
BEGIN
    IF value IS NULL OR value IN ('null', '[]') THEN
        RETURN '[]';
    END IF;
    IF jsonb_typeof(value) <> 'array' THEN
        value := jsonb_build_array(value);
    END IF;
    SELECT jsonb_agg(each.address ORDER BY each.n), bool_or(each.address IS NULL) INTO found, wrong
    FROM (
        SELECT sendonce.enqueue_address(item.value) AS address, item.n
        FROM jsonb_array_elements(value) WITH ORDINALITY AS item (value, n)
        OFFSET 0
    ) AS each;
    RETURN CASE WHEN NOT wrong THEN found END;
END
$$;

-- The addresses as they are stored and compared: without the mailbox, which follows from the rest.
CREATE FUNCTION sendonce.enqueue_shown(addresses jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT coalesce(jsonb_agg(item.value - 'mailbox' ORDER BY item.n), '[]')
    FROM jsonb_array_elements(addresses) WITH ORDINALITY AS item (value, n)
$$;

-- An ISO 8601 instant; null when it is none, or has no offset.
CREATE FUNCTION sendonce.enqueue_instant(value text) RETURNS timestamptz LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE
AS $$
BEGIN
    -- No hour 24 and no leap second: PostgreSQL would take them, and others would not read them.
    IF value ~ '^\d{4}-\d\d-\d\d[T ]([01]\d|2[0-3]):[0-5]\d(:[0-5]\d(\.\d{1,9})?)?(Z|[+-]\d\d(:?\d\d)?)$' THEN
        -- What lies beyond these days is no instant to every language.
        IF value::timestamptz BETWEEN '0001-01-02 00:00+00' AND '9999-12-30 00:00+00' THEN
            RETURN value::timestamptz;
        END IF;
    END IF;
    RETURN NULL;
EXCEPTION WHEN data_exception THEN
    RETURN NULL;
END
$$;

-- Whether every language can read these parameters: at most 50 levels, as in sendonce.checks.plain_json, and no number
-- beyond 1e100. jsonb takes thousands of levels and of digits; a worker that failed at reading them could not even
-- refuse the mail.
CREATE FUNCTION sendonce.enqueue_parameters(value jsonb) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT NOT jsonb_path_exists(value, 'strict $.**{51 to last}')
        AND NOT jsonb_path_exists(value, 'strict $.** ? (@ >= 1e100 || @ <= -1e100)')
$$;

-- Whether it is a retry policy, by the bounds of sendonce.policy.RetryPolicy.
CREATE FUNCTION sendonce.enqueue_retry(value jsonb) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT value - ARRAY['delays', 'base', 'factor', 'cap', 'jitter', 'max_attempts', 'max_age'] = '{}'
        AND NOT EXISTS (SELECT FROM jsonb_each(value) AS member (name, given) WHERE NOT coalesce(CASE name
            WHEN 'delays' THEN jsonb_typeof(given) = 'array' AND NOT jsonb_path_exists(given,
                'strict $[*] ? (!(@ >= 0.25 && @ <= 604800) || (@ >= 0) is unknown)')
            WHEN 'factor' THEN given @@ 'strict $ >= 1 && $ <= 100'
            WHEN 'jitter' THEN given @@ 'strict $ >= 0 && $ <= 1'
            WHEN 'max_age' THEN given @@ 'strict $ >= 1 && $ <= 31536000'
            WHEN 'max_attempts' THEN given @@ 'strict $ >= 1 && $ <= 1000' AND given::text ~ '^[0-9]+$'
            ELSE given @@ 'strict $ >= 0.25 && $ <= 604800'
        END, false))
$$;

CREATE FUNCTION sendonce.enqueue(message jsonb, attachments jsonb DEFAULT '[]', notify boolean DEFAULT true)
RETURNS TABLE (status text, email_id uuid, stage text)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    -- A header is one line: no control but TAB, none of Unicode's line separators.
    broken_line constant text := '[\u0001-\u0008\u000a-\u001f\u007f-\u009f\u2028\u2029]';
    size_limit constant bigint := 25 * 1024 * 1024;  -- octets in base64, as in sendonce.message.CONTENT_LIMIT
    wrong       text;
    v_key       text := message ->> 'key';
    v_account   text := coalesce(message ->> 'account', 'default');
    v_lane      text := coalesce(message ->> 'lane', 'default');
    sender      jsonb;
    a_to        jsonb;
    a_cc        jsonb;
    a_bcc       jsonb;
    a_reply_to  jsonb;
    bounces     text := message ->> 'envelope_sender';
    v_subject   text := coalesce(message ->> 'subject', '');
    v_text      text := nullif(message ->> 'text', '');
    v_html      text := nullif(message ->> 'html', '');
    v_template  text := nullif(message ->> 'template', '');
    v_locale    text := nullif(message ->> 'locale', '');
    v_rendered  boolean := message -> 'rendered' IS NOT DISTINCT FROM 'true';
    v_mime      boolean := message -> 'mime' IS NOT DISTINCT FROM 'true';
    v_params    jsonb := nullif(nullif(message -> 'parameters', 'null'), '{}');
    v_headers   jsonb := coalesce(nullif(message -> 'headers', 'null'), '{}');
    v_retry     jsonb := nullif(message -> 'retry', 'null');
    v_send      timestamptz;
    v_expires   timestamptz;
    mailboxes   text[];
    item        jsonb;
    body        bytea;
    bodies      bytea[] := '{}';
    files       jsonb := '[]';
    size        bigint;
    content     jsonb;
    v_digest    bytea;
    there       record;
    v_id        uuid := gen_random_uuid();
    v_now       timestamptz := sendonce.clock();
BEGIN
    -- Shape: known members of the right type.
    IF jsonb_typeof(message) IS DISTINCT FROM 'object' THEN
        wrong := 'message';
    ELSE
        SELECT CASE WHEN member.key ~ '^[a-z_]{1,30}$' THEN member.key ELSE 'message' END INTO wrong
        FROM jsonb_each(message) AS member (key, value)
        WHERE NOT CASE
            WHEN member.key IN ('key', 'account', 'lane', 'envelope_sender', 'subject', 'text', 'html', 'template',
                                'send_after', 'expires_at', 'requested_by', 'unknown', 'locale', 'message_id',
                                'fairness_key', 'traceparent', 'topic')
                THEN jsonb_typeof(member.value) IN ('string', 'null')
            WHEN member.key IN ('rendered', 'mime') THEN jsonb_typeof(member.value) IN ('boolean', 'null')
            WHEN member.key IN ('parameters', 'headers', 'retry') THEN jsonb_typeof(member.value) IN ('object', 'null')
            WHEN member.key = 'on_final' THEN jsonb_typeof(member.value) IN ('string', 'object', 'null')
            ELSE member.key IN ('sender', 'to', 'cc', 'bcc', 'reply_to')
        END
        LIMIT 1;
    END IF;

    -- Values, one after the other; the first that is wrong is named.
    sender := sendonce.enqueue_address(message -> 'sender');
    a_to := sendonce.enqueue_addresses(message -> 'to');
    a_cc := sendonce.enqueue_addresses(message -> 'cc');
    a_bcc := sendonce.enqueue_addresses(message -> 'bcc');
    a_reply_to := sendonce.enqueue_addresses(message -> 'reply_to');
    v_send := sendonce.enqueue_instant(message ->> 'send_after');
    v_expires := sendonce.enqueue_instant(message ->> 'expires_at');
    IF bounces <> '' THEN
        bounces := sendonce.enqueue_address(message -> 'envelope_sender') ->> 'mailbox';
    END IF;
    wrong := coalesce(wrong, CASE
        WHEN coalesce(v_key !~ '^[A-Za-z0-9._:-]{1,100}$', true) THEN 'key'
        WHEN v_account !~ '^[a-z0-9_-]{1,50}$' THEN 'account'
        WHEN v_lane !~ '^[a-z0-9_-]{1,50}$' THEN 'lane'
        WHEN sender IS NULL THEN 'sender'
        WHEN bounces IS NULL AND message ->> 'envelope_sender' IS NOT NULL THEN 'envelope_sender'
        WHEN a_to IS NULL THEN 'to'
        WHEN a_cc IS NULL THEN 'cc'
        WHEN a_bcc IS NULL THEN 'bcc'
        WHEN a_reply_to IS NULL THEN 'reply_to'
        WHEN v_subject ~ broken_line OR octet_length(v_subject) > 989 THEN 'subject'
        WHEN v_rendered AND (v_template IS NULL OR coalesce(v_text, v_html) IS NULL) THEN 'rendered'
        WHEN v_template IS NOT NULL AND NOT v_rendered AND (v_text IS NOT NULL OR v_html IS NOT NULL) THEN 'template'
        WHEN v_mime AND coalesce(v_text, v_html, v_template, v_params::text, nullif(v_headers, '{}')::text) IS NOT NULL
            THEN 'mime'
        WHEN v_mime AND jsonb_array_length(CASE jsonb_typeof(attachments) WHEN 'array' THEN attachments ELSE '[]' END) <> 1
            THEN 'mime'
        WHEN message ->> 'message_id' IS NOT NULL
            AND (NOT v_mime OR message ->> 'message_id' !~ '^<[!-;=?-~]{1,240}>$') THEN 'message_id'
        WHEN v_locale !~ '^[A-Za-z0-9]{1,8}([-_][A-Za-z0-9]{1,8}){0,3}$' THEN 'locale'
        WHEN v_template ~ broken_line OR length(v_template) > 200 THEN 'template'
        WHEN v_params IS NOT NULL AND (v_template IS NULL OR NOT sendonce.enqueue_parameters(v_params)) THEN 'parameters'
        WHEN v_retry IS NOT NULL AND NOT sendonce.enqueue_retry(v_retry) THEN 'retry'
        WHEN v_send IS NULL AND message ->> 'send_after' IS NOT NULL THEN 'send_after'
        WHEN v_expires IS NULL AND message ->> 'expires_at' IS NOT NULL THEN 'expires_at'
        WHEN v_expires <= v_send THEN 'expires_at'
        WHEN message ->> 'unknown' NOT IN ('hold', 'resend') THEN 'unknown'
        WHEN message ->> 'requested_by' ~ broken_line OR length(message ->> 'requested_by') > 200 THEN 'requested_by'
        WHEN message ->> 'fairness_key' !~ '^[A-Za-z0-9._:-]{1,100}$' THEN 'fairness_key'
        WHEN message ->> 'topic' !~ '^[A-Za-z0-9._:-]{1,100}$' THEN 'topic'
        WHEN NOT sendonce.enqueue_on_final(message -> 'on_final') THEN 'on_final'
        WHEN jsonb_typeof(attachments) NOT IN ('array', 'null') THEN 'attachments'
    END);
    IF wrong IS NULL AND v_headers <> '{}' AND EXISTS (
        SELECT FROM jsonb_each(v_headers) AS header (name, value)
        WHERE jsonb_typeof(header.value) <> 'string'
            OR header.name !~ '^[!-9;-~]+$'  -- RFC 5322 3.6.8, ftext
            OR header.value #>> '{}' ~ broken_line
            OR lower(header.name COLLATE "C") ~ '^(content-|resent-)'
            OR lower(header.name COLLATE "C") IN ('from', 'to', 'cc', 'bcc', 'subject', 'date', 'message-id',
                'mime-version', 'sender', 'reply-to', 'return-path', 'received', 'dkim-signature')
    ) THEN
        wrong := 'headers';
    END IF;
    IF wrong IS NULL THEN
        SELECT array_agg(once.mailbox ORDER BY once.n) INTO mailboxes
        FROM (
            SELECT address.value ->> 'mailbox' AS mailbox, min(address.n) AS n
            FROM jsonb_array_elements(a_to || a_cc || a_bcc) WITH ORDINALITY AS address (value, n)
            GROUP BY 1
        ) AS once;
        IF coalesce(cardinality(mailboxes), 0) NOT BETWEEN 1 AND 1000 THEN
            wrong := 'to';
        END IF;
    END IF;
    IF wrong IS NULL AND jsonb_typeof(attachments) = 'array' THEN
        FOR item IN SELECT file.value FROM jsonb_array_elements(attachments) AS file (value) LOOP
            BEGIN
                body := decode(item ->> 'content', 'base64');
            EXCEPTION WHEN data_exception THEN
                body := NULL;
            END;
            IF body IS NULL
                OR jsonb_typeof(item -> 'filename') IS DISTINCT FROM 'string' OR item ->> 'filename' = ''
                OR jsonb_typeof(item -> 'content_type') NOT IN ('string', 'null')
                OR jsonb_typeof(item -> 'content_id') NOT IN ('string', 'null')
                OR jsonb_typeof(item -> 'inline') NOT IN ('boolean', 'null')
                OR jsonb_typeof(item -> 'alternative') NOT IN ('boolean', 'null')
                OR concat(item ->> 'filename', item ->> 'content_type', item ->> 'content_id') ~ broken_line
                OR item - ARRAY['filename', 'content_type', 'content_id', 'inline', 'alternative', 'content'] <> '{}'
            THEN
                wrong := 'attachments';
                EXIT;
            END IF;
            bodies := bodies || body;
            files := files || jsonb_build_array(jsonb_build_object(
                'filename', item ->> 'filename',
                'content_type', coalesce(item ->> 'content_type', 'application/octet-stream'),
                'content_id', item ->> 'content_id',
                'inline', coalesce((item ->> 'inline')::boolean, false),
                'alternative', coalesce((item ->> 'alternative')::boolean, false),
                'sha256', encode(sha256(body), 'hex')));
        END LOOP;
    END IF;
    IF wrong IS NULL AND coalesce(v_text, v_html, v_template) IS NULL AND files = '[]' THEN
        wrong := 'text';
    END IF;
    IF wrong IS NULL THEN
        SELECT coalesce(sum(octet_length(each.body)), 0) INTO size FROM unnest(bodies) AS each (body);
        size := size + coalesce(octet_length(v_text), 0) + coalesce(octet_length(v_html), 0)
            + coalesce(octet_length(v_params::text), 0);
        IF (CASE WHEN v_mime THEN size ELSE (size + 56) / 57 * 78 END) > size_limit THEN
            wrong := CASE WHEN v_mime THEN 'mime' WHEN files <> '[]' THEN 'attachments' WHEN v_params IS NOT NULL THEN 'parameters'
                WHEN v_text IS NOT NULL THEN 'text' ELSE 'html' END;
        END IF;
    END IF;
    IF wrong IS NOT NULL THEN
        status := 'invalid:' || wrong;
        RETURN NEXT;
        RETURN;
    END IF;

    -- Absent, null and empty are one thing here, so that every language arrives at the same digest.
    content := jsonb_build_object(
        'sender', sender - 'mailbox', 'envelope_sender', bounces,
        'to', sendonce.enqueue_shown(a_to), 'cc', sendonce.enqueue_shown(a_cc), 'bcc', sendonce.enqueue_shown(a_bcc),
        'reply_to', sendonce.enqueue_shown(a_reply_to), 'subject', v_subject, 'text', v_text, 'html', v_html,
        'template', v_template, 'parameters', v_params, 'locale', v_locale, 'headers', v_headers,
        'mime', nullif(v_mime, false));
    -- What was made from a template is not compared: a mended template must not turn a repetition into a conflict.
    v_digest := sha256(convert_to((content - CASE WHEN v_template IS NOT NULL THEN ARRAY['subject', 'text', 'html'] ELSE '{}' END
        || jsonb_build_object('attachments', files))::text, 'UTF8'));

    -- The unique index decides, nothing is looked up before: a concurrent caller with the same key waits here.
    LOOP
        INSERT INTO sendonce.email_key (account, key, email_id, digest, created_at)
        VALUES (v_account, v_key, v_id, v_digest, v_now)
        ON CONFLICT DO NOTHING;
        EXIT WHEN FOUND;
        SELECT k.email_id, k.digest, e.stage INTO there
        FROM sendonce.email_key AS k LEFT JOIN sendonce.email AS e ON e.id = k.email_id
        WHERE k.account = v_account AND k.key = v_key;
        -- Not found: retention has forgotten the key between the two statements.
        IF FOUND THEN
            status := CASE WHEN there.digest = v_digest THEN 'exists' ELSE 'conflict' END;
            email_id := there.email_id;
            stage := there.stage;
            RETURN NEXT;
            RETURN;
        END IF;
    END LOOP;

    INSERT INTO sendonce.email (id, account, key, lane, from_domain, template, created_at, send_after, expires_at, next_attempt_at, retry,
                                unknown_policy, fairness_key, has_topic, watched, to_domains, open_ordinals)
    VALUES (v_id, v_account, v_key, v_lane, substring(sender ->> 'mailbox' FROM '@([^@]+)$'), coalesce(v_template, ''), v_now, v_send, v_expires, greatest(v_send, v_now), v_retry,
            message ->> 'unknown', coalesce(message ->> 'fairness_key', ''),
            message ->> 'topic' IS NOT NULL, message ->> 'on_final' IS NOT NULL,
            ARRAY(SELECT DISTINCT lower(substring(m.mailbox FROM '@([^@]+)$')) FROM unnest(mailboxes) AS m (mailbox)),
            ARRAY(SELECT generate_series(0, cardinality(mailboxes) - 1)));
    INSERT INTO sendonce.email_content (email_id, message_id, content, requested_by, traceparent)
    VALUES (v_id, coalesce(message ->> 'message_id',
                           '<' || v_id || '@' || substring(sender ->> 'mailbox' FROM '@([^@]+)$') || '>'),
            content || jsonb_build_object('rendered', v_rendered, 'key', v_key, 'account', v_account, 'lane', v_lane,
                'send_after', message -> 'send_after', 'expires_at', message -> 'expires_at',
                'requested_by', message -> 'requested_by', 'retry', v_retry, 'unknown', message -> 'unknown',
                'message_id', message -> 'message_id', 'fairness_key', message -> 'fairness_key',
                'topic', message -> 'topic', 'on_final', message -> 'on_final'),
            message ->> 'requested_by',
            -- https://www.w3.org/TR/trace-context/#traceparent-header, version 00; ids of nothing but zeros are invalid.
            CASE WHEN message ->> 'traceparent' ~ '^00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$'
                THEN message ->> 'traceparent' END);
    INSERT INTO sendonce.recipient (email_id, ordinal, mailbox)
    SELECT v_id, each.n - 1, each.mailbox FROM unnest(mailboxes) WITH ORDINALITY AS each (mailbox, n);
    IF files <> '[]' THEN
        INSERT INTO sendonce.attachment (email_id, ordinal, filename, content_type, content_id, inline, alternative, content)
        SELECT v_id, file.n - 1, file.value ->> 'filename', file.value ->> 'content_type',
            file.value ->> 'content_id', (file.value ->> 'inline')::boolean, (file.value ->> 'alternative')::boolean,
            bodies[file.n]
        FROM jsonb_array_elements(files) WITH ORDINALITY AS file (value, n);
    END IF;
    INSERT INTO sendonce.transition (email_id, at, to_stage, cause, actor)
    VALUES (v_id, v_now, 'pending', 'enqueued', coalesce(nullif(message ->> 'requested_by', ''), session_user));

    IF message ->> 'topic' IS NOT NULL THEN
        -- Where none is older there is nothing to look for.
        INSERT INTO sendonce.topic (email_id, account, topic, looked)
        SELECT v_id, v_account, message ->> 'topic', NOT EXISTS (
            SELECT FROM sendonce.topic AS older WHERE older.account = v_account AND older.topic = message ->> 'topic');
    END IF;
    IF message ->> 'on_final' IS NOT NULL THEN
        INSERT INTO sendonce.final_watch (email_id, workflow_id, signal)
        VALUES (v_id, coalesce(message -> 'on_final' ->> 'workflow_id', ''), coalesce(message -> 'on_final' ->> 'signal', ''));
    END IF;
    -- NOTIFY takes a lock that serialises commits, and forbids PREPARE TRANSACTION: both switches can turn it off.
    IF enqueue.notify AND (SELECT i.notify FROM sendonce.installation AS i) THEN
        -- The lane, and nothing else of the mail: starters of other lanes need not look.
        PERFORM pg_notify('sendonce', v_lane);
    END IF;
    status := 'created';
    email_id := v_id;
    stage := 'pending';
    RETURN NEXT;
END
$$;

COMMENT ON FUNCTION sendonce.enqueue(jsonb, jsonb, boolean) IS
    'Accept a mail inside the caller''s transaction; returns created, exists, conflict or invalid:<field>, and never raises for these.';
