-- Whether this is still the database that it was: what the store last knew of the server it lives on.

-- One row. A copy carries it along, so what it names is compared with the server that is there.
CREATE TABLE sendonce.continuity (
    one             boolean NOT NULL DEFAULT true CONSTRAINT pk_continuity PRIMARY KEY
        CONSTRAINT ck_continuity_one CHECK (one),
    system_id       text,                         -- of the cluster; null: none was seen yet, or it may not be asked
    timeline        integer,                      -- a promotion and a recovery to a point in time begin another one
    database_oid    bigint,                       -- a dump that is loaded, and a copy by template, has another one
    epoch           integer NOT NULL DEFAULT 0,   -- counts how often somebody let it go on
    seen_at         timestamptz,                  -- a worker or starter was here then: what the store knows ends there
    halted_at       timestamptz,                  -- nothing is started and nothing begun; null: it goes on
    halted_why      text,
    allowed_at      timestamptz,                  -- somebody let it go on then
    allowed_by      text
);
INSERT INTO sendonce.continuity DEFAULT VALUES;

-- The server as it is now. A part that this role or this service may not ask is null: it is not compared then.
-- position: what was flushed, in octets. It never falls on one timeline, unless an older copy of the files was put back.
CREATE FUNCTION sendonce.server_identity()
RETURNS TABLE (system_id text, timeline integer, database_oid bigint, "position" bigint, started_at timestamptz)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    BEGIN
        SELECT c.system_identifier::text INTO system_id FROM pg_control_system() AS c;
    EXCEPTION WHEN OTHERS THEN
        system_id := NULL;
    END;
    BEGIN
        -- Not pg_control_checkpoint: that is the timeline of the last checkpoint, which may be from before a promotion.
        timeline := ('x' || left(pg_walfile_name(pg_current_wal_flush_lsn()), 8))::bit(32)::integer;
        "position" := pg_current_wal_flush_lsn() - '0/0'::pg_lsn;
    EXCEPTION WHEN OTHERS THEN
        timeline := NULL;
        "position" := NULL;
    END;
    SELECT d.oid::bigint INTO database_oid FROM pg_database AS d WHERE d.datname = current_database();
    started_at := pg_postmaster_start_time();
    RETURN NEXT;
END
$$;
