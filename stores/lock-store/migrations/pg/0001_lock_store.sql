-- The lock store on PostgreSQL 16. Runs with the store's schema first in the search path, in one transaction.
--
-- One function per verb, called once per batch: one round trip, one commit. Each statement inside a VOLATILE function
-- takes a new snapshot under READ COMMITTED, so that rows are locked by one statement and what the previous holder did
-- is seen by the next. Everybody locks in one order: the clock's row, sessions, keys (each in byte order), the token
-- sequence, the lineage row, the turnstile of the facts.

-- The clock that everything here is judged by, read after the lock that it depends on: never now(), which stands still.
CREATE FUNCTION lock_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT clock_timestamp()';

CREATE FUNCTION lock_ms(at timestamptz) RETURNS bigint LANGUAGE sql IMMUTABLE AS
    'SELECT floor(extract(epoch FROM at) * 1000)::bigint';
CREATE FUNCTION lock_us(at timestamptz) RETURNS bigint LANGUAGE sql IMMUTABLE AS
    'SELECT (extract(epoch FROM at) * 1000000)::bigint';
-- What is left until an instant, never negative.
CREATE FUNCTION lock_left(until timestamptz, now timestamptz) RETURNS bigint LANGUAGE sql IMMUTABLE AS
    'SELECT greatest(0, (extract(epoch FROM until - now) * 1000000)::bigint)';
CREATE FUNCTION lock_span(ms bigint) RETURNS interval LANGUAGE sql IMMUTABLE AS
    'SELECT ms * interval ''1 millisecond''';

CREATE TABLE lock_session (
    session_id        text COLLATE "C" PRIMARY KEY,
    owner             text NOT NULL,
    -- JSON, kept as the text it came as.
    metadata          text,
    ttl_ms            bigint NOT NULL CHECK (ttl_ms > 0),
    opened_at         timestamptz NOT NULL,
    expires_at        timestamptz NOT NULL,
    last_heartbeat_at timestamptz NOT NULL
);
CREATE INDEX lock_session_due ON lock_session (expires_at);

-- One row per held key. A freed key's row stays as a tombstone: session null, expires_at the instant it was freed,
-- token the highest ever minted for it.
CREATE TABLE lock_grant (
    lock_key   text COLLATE "C" PRIMARY KEY,
    session_id text COLLATE "C" REFERENCES lock_session (session_id),
    token      bigint NOT NULL CHECK (token BETWEEN 1 AND 9007199254740991),
    ttl_ms     bigint NOT NULL CHECK (ttl_ms > 0),
    granted_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    metadata   text,
    request_id text
);
CREATE INDEX lock_grant_held ON lock_grant (session_id, lock_key) WHERE session_id IS NOT NULL;
CREATE INDEX lock_grant_due ON lock_grant (expires_at) WHERE session_id IS NOT NULL;
CREATE INDEX lock_grant_freed ON lock_grant (expires_at) WHERE session_id IS NULL;

-- When a lock server last saw this clock go as its own monotonic one does. Whoever starts takes what the clock says from
-- then on, and nothing of before: time that nobody watched does not count against a lease (lock_resume).
CREATE TABLE lock_clock (id int PRIMARY KEY CHECK (id = 1), watched_at timestamptz NOT NULL) WITH (fillfactor = 10);
INSERT INTO lock_clock VALUES (1, lock_now());

-- The source of all tokens: never reset, never cycled, only ever moved up.
CREATE SEQUENCE lock_token_seq AS bigint MINVALUE 1 MAXVALUE 9007199254740991 NO CYCLE CACHE 1;

-- The last token minted, 0 before the first.
CREATE FUNCTION lock_last() RETURNS bigint LANGUAGE sql VOLATILE AS
    'SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END FROM lock_token_seq';

-- The identity of this history of tokens, and whether it is trusted.
CREATE TABLE lock_lineage (
    id          int PRIMARY KEY CHECK (id = 1),
    lineage     text NOT NULL,
    -- The cluster and the timeline that this row was written on.
    origin      text NOT NULL,
    -- The transaction that wrote this row. A row that was dumped and restored was written by another one: its xmin says so.
    written_by  xid8 NOT NULL,
    token_floor bigint NOT NULL CHECK (token_floor BETWEEN 0 AND 9007199254740991),
    state       text NOT NULL CHECK (state IN ('OK', 'REGRESSED')),
    changed_at  timestamptz NOT NULL,
    changed_by  text NOT NULL,
    -- What was found, while in doubt.
    detail      text,
    -- A configured lineage other than this one that an operator has accepted by clearing the doubt.
    accepted    text
);

CREATE FUNCTION lock_origin() RETURNS text LANGUAGE sql VOLATILE AS
    'SELECT system_identifier || ''/'' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) FROM pg_control_system()';

-- Facts, written in the transaction they describe.
CREATE SEQUENCE lock_event_seq AS bigint CACHE 1;
CREATE TABLE lock_event (
    seq        bigint PRIMARY KEY,
    at         timestamptz NOT NULL,
    kind       text NOT NULL,
    lock_key   text COLLATE "C",
    session_id text COLLATE "C",
    token      bigint,
    actor      text,
    reason     text
);
CREATE INDEX lock_event_key ON lock_event (lock_key, seq) WHERE lock_key IS NOT NULL;
CREATE INDEX lock_event_granted ON lock_event (token) WHERE kind = 'GRANTED';

-- Whoever writes facts holds this row from before their seqs are given until they are committed. So the order of seq is
-- the order of commit: a transaction that still runs can only write above everything that is to be seen, and a cursor
-- misses none. A row lock leaves nothing behind to be vacuumed.
--
-- It makes commits that write facts take turns, and it must. A cursor is one number: whatever becomes visible below it
-- is lost to its reader, who can see neither a row that is not committed nor how many of them there are, so the numbers
-- have to be given in the order of commit, and a commit cannot be overtaken but by waiting for it. Nor would less
-- waiting come of another scheme: NOTIFY, which a transaction needs to wake other replicas in the same order, takes a
-- lock of the whole server before the commit and keeps it until after (PreCommit_Notify), so the commits take turns in
-- any case. What keeps the throughput is the batch: a lock server sends one transaction for everything that gathered
-- during the one before, and what only refuses or renews writes no facts and takes no turn.
CREATE TABLE lock_event_turnstile (id int PRIMARY KEY CHECK (id = 1));
INSERT INTO lock_event_turnstile VALUES (1);

-- Seals over contiguous segments of the facts, appended afterwards. Two sealers that start from the same seal collide on
-- first_seq, and one of them begins anew.
CREATE TABLE lock_event_seal (
    chain     text NOT NULL,
    n         bigint NOT NULL CHECK (n >= 1),
    first_seq bigint NOT NULL UNIQUE,
    last_seq  bigint NOT NULL UNIQUE CHECK (last_seq >= first_seq),
    prev_hash text NOT NULL CHECK (length(prev_hash) = 64),
    hash      text NOT NULL CHECK (length(hash) = 64),
    PRIMARY KEY (chain, n)
);

-- Facts up to this seq may be dropped. It rises only, and only to the end of a sealed segment, so that a plain DELETE
-- finds nothing it may touch, and what is left always begins behind a known seal.
CREATE TABLE lock_event_retention (id int PRIMARY KEY CHECK (id = 1), dropped_up_to bigint NOT NULL);
INSERT INTO lock_event_retention VALUES (1, 0);

CREATE FUNCTION lock_event_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        IF OLD.seq <= (SELECT dropped_up_to FROM lock_event_retention) THEN
            RETURN OLD;
        END IF;
    END IF;
    RAISE EXCEPTION '% is append-only', TG_TABLE_NAME USING ERRCODE = 'DL009';
END $$;
CREATE TRIGGER lock_event_append_only BEFORE UPDATE OR DELETE ON lock_event
    FOR EACH ROW EXECUTE FUNCTION lock_event_guard();
CREATE TRIGGER lock_event_not_emptied BEFORE TRUNCATE ON lock_event
    FOR EACH STATEMENT EXECUTE FUNCTION lock_event_guard();
CREATE TRIGGER lock_event_seal_not_emptied BEFORE TRUNCATE ON lock_event_seal
    FOR EACH STATEMENT EXECUTE FUNCTION lock_event_guard();

CREATE FUNCTION lock_event_seal_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- The seal at the guard itself stays: the next segment's prev_hash is its hash.
    IF TG_OP = 'DELETE' THEN
        IF OLD.last_seq < (SELECT dropped_up_to FROM lock_event_retention) THEN
            RETURN OLD;
        END IF;
    ELSIF TG_OP = 'INSERT' THEN
        IF NEW.first_seq > coalesce((SELECT max(last_seq) FROM lock_event_seal), 0) THEN
            RETURN NEW;
        END IF;
    END IF;
    RAISE EXCEPTION 'lock_event_seal is append-only' USING ERRCODE = 'DL009';
END $$;
CREATE TRIGGER lock_event_seal_append_only BEFORE INSERT OR UPDATE OR DELETE ON lock_event_seal
    FOR EACH ROW EXECUTE FUNCTION lock_event_seal_guard();

CREATE FUNCTION lock_event_retention_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' THEN
        IF NEW.id = OLD.id AND NEW.dropped_up_to >= OLD.dropped_up_to
            AND EXISTS (SELECT 1 FROM lock_event_seal WHERE last_seq = NEW.dropped_up_to) THEN
            RETURN NEW;
        END IF;
    END IF;
    RAISE EXCEPTION 'lock_event is append-only: only whole sealed segments may go' USING ERRCODE = 'DL009';
END $$;
CREATE TRIGGER lock_event_retention_rises BEFORE INSERT OR UPDATE OR DELETE ON lock_event_retention
    FOR EACH ROW EXECUTE FUNCTION lock_event_retention_guard();

CREATE TYPE lock_fact AS (kind text, lock_key text, session_id text, token bigint, actor text, reason text);

-- One item of a batch. nth: the how-manieth of its key in the batch, since the items of one key act in order.
CREATE TYPE lock_ask AS (ord bigint, nth bigint, lock_key text, session_id text, request_id text, ttl_ms bigint,
    metadata text, token bigint, owner text, verdict text);

-- One row of any answer; what does not apply is null.
CREATE TYPE lock_answer AS (ord bigint, outcome text, lock_key text, session_id text, owner text, token bigint,
    ttl_ms bigint, left_us bigint, at_us bigint, since_ms bigint, request_id text, metadata text, number bigint,
    detail text);

-- Appends facts in the order given and tells whoever listens. The last thing a transaction does.
CREATE FUNCTION lock_record(p_facts lock_fact[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz;
    v_last bigint;
BEGIN
    IF cardinality(p_facts) = 0 THEN
        RETURN;
    END IF;
    PERFORM 1 FROM lock_event_turnstile WHERE id = 1 FOR UPDATE;
    v_now := lock_now();
    WITH written AS (
        INSERT INTO lock_event (seq, at, kind, lock_key, session_id, token, actor, reason)
        SELECT nextval('lock_event_seq'), v_now, f.kind, f.lock_key, f.session_id, f.token, f.actor, f.reason
        FROM (SELECT * FROM unnest(p_facts) WITH ORDINALITY
              AS f (kind, lock_key, session_id, token, actor, reason, ord) ORDER BY ord) f
        RETURNING seq
    )
    SELECT max(seq) INTO v_last FROM written;
    PERFORM pg_notify('dlock_event_' || current_schema(), v_last::text);
END $$;

-- From now on nothing is granted. Answers the fact to be recorded; the first doubt found stands.
CREATE FUNCTION lock_doubt(p_detail text, p_session text, p_actor text, p_token bigint) RETURNS lock_fact[]
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE lock_lineage SET state = 'REGRESSED', changed_at = lock_now(), changed_by = 'store', detail = p_detail,
        written_by = pg_current_xact_id()
    WHERE id = 1 AND state = 'OK';
    IF NOT FOUND THEN
        RETURN '{}';
    END IF;
    RETURN ARRAY[ROW('REGRESSION_DETECTED', NULL, p_session, p_token, coalesce(p_actor, 'store'), p_detail)::lock_fact];
END $$;

-- Gives every live session and grant its full TTL again: whoever cannot tell how much time has passed keeps to the lower
-- bound that a TTL is.
CREATE FUNCTION lock_full_ttl_again(p_within_ms bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz;
BEGIN
    PERFORM set_config('lock_timeout', p_within_ms::text, true);
    PERFORM 1 FROM lock_clock WHERE id = 1 FOR UPDATE;
    PERFORM 1 FROM lock_session ORDER BY session_id FOR UPDATE;
    PERFORM 1 FROM lock_grant WHERE session_id IS NOT NULL ORDER BY lock_key FOR UPDATE;
    v_now := lock_now();
    UPDATE lock_session SET expires_at = v_now + lock_span(ttl_ms);
    UPDATE lock_grant SET expires_at = v_now + lock_span(ttl_ms) WHERE session_id IS NOT NULL;
    UPDATE lock_clock SET watched_at = v_now WHERE id = 1;
    RETURN lock_us(v_now);
END $$;

-- What a lock server does that starts and knows nothing of this clock yet. Where another one, or it itself before, has
-- watched the clock until p_tolerance_ms ago, no jump of more than that can hide in between, and nothing is done. Else the
-- time since the last watch does not count: each lease has left what it had left then, and at most its full TTL. So a
-- jump while nobody watched ends nothing early, and a lock server that starts over and over delays no end by more than
-- the time in which nobody ran. Answers the milliseconds that do not count.
CREATE FUNCTION lock_resume(p_within_ms bigint, p_tolerance_ms bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_watched timestamptz;
    v_now timestamptz;
BEGIN
    PERFORM set_config('lock_timeout', p_within_ms::text, true);
    SELECT watched_at INTO STRICT v_watched FROM lock_clock WHERE id = 1 FOR UPDATE;
    v_now := lock_now();
    IF v_now BETWEEN v_watched AND v_watched + lock_span(p_tolerance_ms) THEN
        RETURN 0;
    END IF;
    PERFORM 1 FROM lock_session ORDER BY session_id FOR UPDATE;
    PERFORM 1 FROM lock_grant WHERE session_id IS NOT NULL ORDER BY lock_key FOR UPDATE;
    v_now := lock_now();
    UPDATE lock_session SET expires_at = least(expires_at + (v_now - v_watched), v_now + lock_span(ttl_ms));
    UPDATE lock_grant SET expires_at = least(expires_at + (v_now - v_watched), v_now + lock_span(ttl_ms))
        WHERE session_id IS NOT NULL;
    UPDATE lock_clock SET watched_at = v_now WHERE id = 1;
    RETURN lock_ms(v_now) - lock_ms(v_watched);
END $$;

-- What every verb does first: bounds its waits for rows, and compares the store's clock and origin with what is known.
CREATE FUNCTION lock_begin(p_within_ms bigint, p_expect_us bigint, p_lineage text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_off bigint := lock_us(lock_now()) - p_expect_us;
    v_lineage record;
BEGIN
    PERFORM set_config('lock_timeout', p_within_ms::text, true);
    IF abs(v_off) > 1000000 THEN
        RAISE EXCEPTION 'the database''s clock moved by % us', v_off USING ERRCODE = 'DL002';
    END IF;
    SELECT l.origin = lock_origin() AND l.xmin = l.written_by::xid AS same, l.state, l.lineage, l.accepted
        INTO v_lineage FROM lock_lineage l WHERE id = 1;
    IF v_lineage.same IS NOT TRUE THEN
        RAISE EXCEPTION 'the store was restored or moved' USING ERRCODE = 'DL003';
    END IF;
    IF v_lineage.state = 'OK' AND p_lineage <> v_lineage.lineage AND p_lineage IS DISTINCT FROM v_lineage.accepted THEN
        RAISE EXCEPTION 'the store is another one' USING ERRCODE = 'DL005';
    END IF;
END $$;

-- A lock server that has compared the clock with its own says so, for whoever starts later. One of them a turn is enough.
CREATE FUNCTION lock_watch(p_within_ms bigint, p_expect_us bigint, p_lineage text, p_every_ms bigint)
RETURNS SETOF lock_answer LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz;
BEGIN
    PERFORM lock_begin(p_within_ms, p_expect_us, p_lineage);
    v_now := lock_now();
    IF p_expect_us IS NOT NULL THEN
        -- One that is lost in a crash is as if it had not been made: nobody needs to wait for the disk.
        PERFORM set_config('synchronous_commit', 'off', true);
        UPDATE lock_clock SET watched_at = v_now WHERE id IN (
            SELECT id FROM lock_clock WHERE watched_at NOT BETWEEN v_now - lock_span(p_every_ms / 2) AND v_now
            FOR UPDATE SKIP LOCKED);
    END IF;
    RETURN QUERY SELECT 1::bigint, 'WATCHED', NULL::text, NULL::text, NULL::text, NULL::bigint, NULL::bigint,
        NULL::bigint, lock_us(v_now), NULL::bigint, NULL::text, NULL::text, NULL::bigint, NULL::text;
END $$;

-- Compares the store's id with the configured one; another id is a doubt, unless an operator has cleared that very
-- doubt before. What lives in another store gets its full TTL: nobody knows what its clock did.
CREATE FUNCTION lock_check_lineage(p_within_ms bigint, p_expected text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_id text;
    v_accepted text;
BEGIN
    PERFORM set_config('lock_timeout', p_within_ms::text, true);
    IF EXISTS (SELECT 1 FROM lock_lineage WHERE id = 1 AND state = 'OK' AND p_expected <> lineage
               AND p_expected IS DISTINCT FROM accepted) THEN
        PERFORM lock_full_ttl_again(p_within_ms);
    END IF;
    SELECT lineage, accepted INTO v_id, v_accepted FROM lock_lineage WHERE id = 1 FOR UPDATE;
    IF p_expected <> v_id AND p_expected IS DISTINCT FROM v_accepted THEN
        PERFORM lock_record(lock_doubt(
            format('the store''s lineage is %s, the configured one is %s', v_id, p_expected), NULL, NULL, NULL));
    END IF;
    RETURN v_id;
END $$;

-- A store that was restored or moved: the floor jumps above whatever the lost part of the history may have minted, and
-- everything that lives gets its full TTL again. Answers whether there was anything to do.
CREATE FUNCTION lock_adopt(p_within_ms bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_floor bigint;
    v_row record;
    v_detail text;
BEGIN
    IF (SELECT origin = lock_origin() AND xmin = written_by::xid FROM lock_lineage WHERE id = 1) THEN
        RETURN false;
    END IF;
    PERFORM lock_full_ttl_again(p_within_ms);
    -- Takes the sequence's lock, which every transaction that mints holds until its end.
    ALTER SEQUENCE lock_token_seq NO CYCLE;
    SELECT l.origin, l.written_by, l.xmin AS seen, l.origin = lock_origin() AND l.xmin = l.written_by::xid AS same,
        greatest(l.token_floor, lock_last()) + 1099511627776 AS floor
        INTO STRICT v_row FROM lock_lineage l WHERE id = 1 FOR UPDATE;
    IF v_row.same THEN
        RETURN false;
    END IF;
    v_floor := v_row.floor;
    v_detail := format('the store was restored or moved: written on %s by transaction %s, found on %s by %s',
        v_row.origin, v_row.written_by, lock_origin(), v_row.seen);
    PERFORM setval('lock_token_seq', v_floor);
    UPDATE lock_lineage SET origin = lock_origin(), written_by = pg_current_xact_id(), token_floor = v_floor,
        changed_at = lock_now(), changed_by = 'store' WHERE id = 1;
    PERFORM lock_record(ARRAY[ROW('FLOOR_ADVANCED', NULL, NULL, v_floor, 'store', v_detail)::lock_fact]);
    RETURN true;
END $$;

CREATE FUNCTION lock_lineage_row() RETURNS SETOF lock_answer LANGUAGE sql VOLATILE AS $$
    SELECT 1::bigint, state, NULL::text, lineage, changed_by, token_floor, NULL::bigint, NULL::bigint, NULL::bigint,
        lock_ms(changed_at), NULL::text, NULL::text, lock_last(), detail
    FROM lock_lineage WHERE id = 1
$$;

-- Raises the floor, or dismisses a doubt where p_floor is null.
CREATE FUNCTION lock_clear_doubt(p_within_ms bigint, p_floor bigint, p_operator text, p_reason text, p_accepted text)
RETURNS SETOF lock_answer LANGUAGE plpgsql AS $$
DECLARE
    v_last bigint;
    v_highest bigint;
    v_state text;
BEGIN
    PERFORM set_config('lock_timeout', p_within_ms::text, true);
    -- Takes the sequence's lock, which every transaction that mints holds until its end: the floor never moves down.
    ALTER SEQUENCE lock_token_seq NO CYCLE;
    SELECT state INTO STRICT v_state FROM lock_lineage WHERE id = 1 FOR UPDATE;
    -- The source may have been set back below what it is known to have minted; a floor down there would end no doubt.
    v_last := greatest(lock_last(), (SELECT coalesce(max(token), 0) FROM lock_event WHERE kind = 'GRANTED'));
    v_highest := least(v_last + 2199023255552, 9007199254740991);
    IF p_floor IS NULL AND v_state = 'OK' THEN
        RETURN QUERY SELECT (ROW(1, 'NOTHING', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)::lock_answer).*;
        RETURN;
    END IF;
    IF p_floor IS NOT NULL AND (p_floor < v_last OR p_floor > v_highest) THEN
        RETURN QUERY SELECT (ROW(1, 'OUT_OF_BOUNDS', NULL, NULL, NULL, v_last, NULL, NULL, NULL, NULL, NULL, NULL, v_highest, NULL)::lock_answer).*;
        RETURN;
    END IF;
    -- The source itself moves, so that the floor holds even for a program that knows no floor.
    IF p_floor > lock_last() THEN
        PERFORM setval('lock_token_seq', p_floor);
    END IF;
    UPDATE lock_lineage SET state = 'OK', token_floor = greatest(token_floor, coalesce(p_floor, 0)),
        changed_at = lock_now(), changed_by = p_operator, detail = NULL, accepted = coalesce(p_accepted, accepted),
        written_by = pg_current_xact_id()
    WHERE id = 1;
    -- There is no token 0 to record.
    PERFORM lock_record(ARRAY[ROW(
        CASE WHEN p_floor IS NULL THEN 'REGRESSION_DISMISSED' ELSE 'FLOOR_ADVANCED' END,
        NULL, NULL, nullif(p_floor, 0), p_operator, p_reason)::lock_fact]);
    RETURN QUERY SELECT * FROM lock_lineage_row();
END $$;

-- Why nothing can be minted, a new doubt included; null where all is well. p_keys: locked already.
CREATE FUNCTION lock_mint_doubt(p_keys text[], OUT o_doubt text, OUT o_facts lock_fact[]) LANGUAGE plpgsql AS $$
DECLARE
    v_last bigint;
    v_floor bigint;
    v_above bigint;
    v_granted bigint;
BEGIN
    o_facts := '{}';
    -- Read before the last token minted: a grant that others record in between is not above that one.
    SELECT max(token) INTO v_granted FROM lock_event WHERE kind = 'GRANTED';
    v_last := lock_last();
    SELECT CASE WHEN state <> 'OK' THEN coalesce(detail, 'the store is in doubt') END, token_floor
        INTO o_doubt, v_floor FROM lock_lineage WHERE id = 1;
    IF o_doubt IS NULL AND v_floor > v_last THEN
        o_doubt := format('the next token is %s, the floor is %s', v_last + 1, v_floor);
        o_facts := lock_doubt(o_doubt, NULL, NULL, NULL);
    END IF;
    IF o_doubt IS NULL THEN
        SELECT max(token) INTO v_above FROM lock_grant WHERE lock_key = ANY (p_keys);
        IF v_above > v_last THEN
            o_doubt := format('the next token is %s, a key''s own last one is %s', v_last + 1, v_above);
            o_facts := lock_doubt(o_doubt, NULL, NULL, NULL);
        END IF;
    END IF;
    IF o_doubt IS NULL AND v_granted > v_last THEN
        o_doubt := format('the next token is %s, the facts know of %s', v_last + 1, v_granted);
        o_facts := lock_doubt(o_doubt, NULL, NULL, NULL);
    END IF;
END $$;

CREATE FUNCTION lock_acquire(p_within_ms bigint, p_expect_us bigint, p_lineage text, p_keys text[], p_sessions text[],
    p_requests text[], p_ttls bigint[], p_metadata text[], p_witnesses bigint[])
RETURNS SETOF lock_answer LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz;
    v_last bigint;
    v_believed bigint;
    v_doubt text;
    v_facts lock_fact[];
    v_asks lock_ask[];
    v_seen lock_ask;
    v_updated jsonb;
    v_granted jsonb;
    v_known bigint;
    v_refused lock_answer[];
    -- The items of the batch that are decided under the locks.
    v_rest bigint[] := ARRAY(SELECT generate_series(1, cardinality(p_keys)));
BEGIN
    PERFORM lock_begin(p_within_ms, p_expect_us, p_lineage);

    -- The losers of a hot key: what a plain read shows as held by another session and not ended is refused without the
    -- row's lock, so that they neither queue for it nor make its holder wait. This can only refuse: every grant is made
    -- below, under the lock and from rows read after it. Nor does a refusal that has just become untrue leave anybody
    -- asleep: the read began after the call did, so whoever read the last seq of the facts before the call sees a
    -- release that this read has missed as a later seq. Whatever is not as plain goes on below: a session that is not
    -- alive, one's own grant, a lease that has ended, a store in doubt, a token or a witness above the last one minted.
    v_now := lock_now();
    v_last := lock_last();
    SELECT array_agg(ROW(a.ord, 'HELD_BY_OTHER', a.lock_key, g.session_id, h.owner, g.token, g.ttl_ms,
            lock_left(least(g.expires_at, h.expires_at), v_now), lock_us(v_now), lock_ms(g.granted_at), g.request_id,
            g.metadata, NULL, NULL)::lock_answer)
        INTO v_refused
        FROM unnest(p_keys, p_sessions, p_witnesses) WITH ORDINALITY AS a (lock_key, session_id, witness, ord)
        JOIN lock_session s ON s.session_id = a.session_id AND s.expires_at > v_now
        JOIN lock_grant g ON g.lock_key = a.lock_key AND g.session_id <> a.session_id AND g.expires_at > v_now
        JOIN lock_session h ON h.session_id = g.session_id
        WHERE g.token <= v_last AND coalesce(a.witness, 0) <= v_last
            AND EXISTS (SELECT 1 FROM lock_lineage l WHERE l.id = 1 AND l.state = 'OK' AND l.token_floor <= v_last);
    IF v_refused IS NOT NULL THEN
        RETURN QUERY SELECT * FROM unnest(v_refused);
        v_rest := ARRAY(SELECT i FROM unnest(v_rest) i
            WHERE NOT i IN (SELECT r.ord FROM unnest(v_refused) r) ORDER BY i);
        IF cardinality(v_rest) = 0 THEN
            RETURN;
        END IF;
        SELECT array_agg(p_keys[i] ORDER BY i), array_agg(p_sessions[i] ORDER BY i), array_agg(p_requests[i] ORDER BY i),
                array_agg(p_ttls[i] ORDER BY i), array_agg(p_metadata[i] ORDER BY i), array_agg(p_witnesses[i] ORDER BY i)
            INTO p_keys, p_sessions, p_requests, p_ttls, p_metadata, p_witnesses FROM unnest(v_rest) i;
    END IF;

    PERFORM 1 FROM lock_session WHERE session_id = ANY (p_sessions) ORDER BY session_id FOR KEY SHARE;
    PERFORM 1 FROM lock_grant WHERE lock_key = ANY (p_keys) ORDER BY lock_key FOR UPDATE;
    GET DIAGNOSTICS v_known = ROW_COUNT;
    -- From here on later statements see whatever the previous holders did.
    v_now := lock_now();
    SELECT greatest(token_floor, lock_last()) INTO v_last FROM lock_lineage WHERE id = 1;
    v_believed := least(v_last + 2199023255552, 9007199254740991);
    SELECT o_doubt, o_facts INTO v_doubt, v_facts FROM lock_mint_doubt(p_keys);

    SELECT array_agg(ROW(v_rest[a.ord], a.nth, a.lock_key, a.session_id, a.request_id, a.ttl_ms, a.metadata, a.witness, s.owner,
            CASE WHEN s.session_id IS NULL THEN 'SESSION_NOT_FOUND' WHEN a.witness > v_believed THEN 'WITNESS_REFUSED' END
        )::lock_ask ORDER BY a.ord)
        INTO v_asks
        FROM (SELECT *, row_number() OVER (PARTITION BY lock_key ORDER BY ord) AS nth
              FROM unnest(p_keys, p_sessions, p_requests, p_ttls, p_metadata, p_witnesses)
                  WITH ORDINALITY AS u (lock_key, session_id, request_id, ttl_ms, metadata, witness, ord)) a
        LEFT JOIN lock_session s ON s.session_id = a.session_id AND s.expires_at > v_now;

    v_facts := v_facts || ARRAY(
        SELECT ROW('WITNESS_REFUSED', NULL, a.session_id, a.token, a.owner, NULL)::lock_fact
        FROM unnest(v_asks) a WHERE a.verdict = 'WITNESS_REFUSED' ORDER BY a.ord);
    IF v_doubt IS NULL THEN
        SELECT a.* INTO v_seen FROM unnest(v_asks) a WHERE a.verdict IS NULL AND a.token > v_last ORDER BY a.ord LIMIT 1;
        IF FOUND THEN
            v_doubt := format('the last token minted is %s, a client has seen %s', v_last, v_seen.token);
            v_facts := v_facts || lock_doubt(v_doubt, v_seen.session_id, v_seen.owner, v_seen.token);
        END IF;
    END IF;

    IF v_doubt IS NULL THEN
        -- What has ended by its own lease is ended in this transaction. Whether its session lives is not asked.
        WITH ended AS (
            UPDATE lock_grant g SET session_id = NULL, expires_at = v_now, metadata = NULL, request_id = NULL
            FROM lock_grant o
            WHERE g.lock_key IN (SELECT a.lock_key FROM unnest(v_asks) a WHERE a.verdict IS NULL)
                AND o.lock_key = g.lock_key AND g.session_id IS NOT NULL AND g.expires_at <= v_now
            RETURNING g.lock_key, o.session_id, g.token
        )
        SELECT v_facts || coalesce(array_agg(
                ROW('EXPIRED', lock_key, session_id, token, 'lease-clock', NULL)::lock_fact ORDER BY lock_key), '{}')
            INTO v_facts FROM ended;
    END IF;

    FOR v_nth IN 1..(SELECT max(a.nth) FROM unnest(v_asks) a) LOOP
        v_granted := '{}';
        IF v_doubt IS NULL THEN
            -- Minted in the update, under the row's lock.
            WITH minted AS (
                UPDATE lock_grant g SET session_id = a.session_id, token = nextval('lock_token_seq'), ttl_ms = a.ttl_ms,
                    granted_at = v_now, expires_at = v_now + lock_span(a.ttl_ms), metadata = a.metadata,
                    request_id = a.request_id
                FROM unnest(v_asks) a
                WHERE a.nth = v_nth AND a.verdict IS NULL AND g.lock_key = a.lock_key AND g.session_id IS NULL
                RETURNING g.lock_key, g.token
            )
            SELECT coalesce(jsonb_object_agg(lock_key, token), '{}') INTO v_updated FROM minted;
            -- A key without a row: where another transaction is quicker, its row is locked and seen by the update branch.
            WITH minted AS (
                INSERT INTO lock_grant AS g
                    (lock_key, session_id, token, ttl_ms, granted_at, expires_at, metadata, request_id)
                SELECT a.lock_key, a.session_id, a.minted, a.ttl_ms, v_now, v_now + lock_span(a.ttl_ms), a.metadata,
                    a.request_id
                FROM (SELECT b.*, nextval('lock_token_seq') AS minted
                      FROM (SELECT * FROM unnest(v_asks) a
                            WHERE a.nth = v_nth AND a.verdict IS NULL
                                AND NOT EXISTS (SELECT 1 FROM lock_grant h WHERE h.lock_key = a.lock_key)
                            ORDER BY a.ord) b) a
                ORDER BY a.lock_key COLLATE "C"
                ON CONFLICT (lock_key) DO UPDATE SET session_id = excluded.session_id,
                    token = nextval('lock_token_seq'), ttl_ms = excluded.ttl_ms, granted_at = excluded.granted_at,
                    expires_at = excluded.expires_at, metadata = excluded.metadata, request_id = excluded.request_id
                WHERE g.session_id IS NULL
                RETURNING g.lock_key, g.token
            )
            SELECT v_updated || coalesce(jsonb_object_agg(lock_key, token), '{}') INTO v_granted FROM minted;
            IF v_known < (SELECT count(*) FROM unnest(v_asks) a WHERE a.nth = 1) THEN
                -- A key that had no row may have got one from another transaction, which is not locked here yet. Where it is
                -- free again already, everything is begun anew.
                PERFORM 1 FROM lock_grant WHERE lock_key = ANY (p_keys) ORDER BY lock_key FOR UPDATE;
                IF EXISTS (SELECT 1 FROM unnest(v_asks) a JOIN lock_grant g ON g.lock_key = a.lock_key
                           WHERE a.nth = v_nth AND a.verdict IS NULL AND g.session_id IS NULL) THEN
                    RAISE EXCEPTION 'a key was granted and freed meanwhile' USING ERRCODE = 'DL001';
                END IF;
            END IF;
            v_facts := v_facts || ARRAY(
                SELECT ROW('GRANTED', a.lock_key, a.session_id, (v_granted ->> a.lock_key)::bigint, a.owner, NULL)::lock_fact
                FROM unnest(v_asks) a
                WHERE a.nth = v_nth AND a.verdict IS NULL AND v_granted ? a.lock_key ORDER BY a.ord);
        END IF;
        RETURN QUERY
            SELECT a.ord,
                CASE WHEN a.verdict IS NOT NULL THEN a.verdict
                     WHEN v_doubt IS NOT NULL THEN 'TOKEN_REGRESSION'
                     WHEN v_granted ? a.lock_key THEN 'GRANTED'
                     WHEN g.session_id = a.session_id AND g.request_id = a.request_id THEN 'REPLAYED'
                     WHEN g.session_id = a.session_id THEN 'HELD_BY_SELF'
                     ELSE 'HELD_BY_OTHER' END,
                a.lock_key, g.session_id::text, s.owner, g.token, g.ttl_ms,
                lock_left(least(g.expires_at, s.expires_at), v_now), lock_us(v_now), lock_ms(g.granted_at),
                g.request_id, g.metadata, v_believed, v_doubt
            FROM unnest(v_asks) a
            LEFT JOIN lock_grant g ON g.lock_key = a.lock_key
            LEFT JOIN lock_session s ON s.session_id = g.session_id
            WHERE a.nth = v_nth;
    END LOOP;
    PERFORM lock_record(v_facts);
END $$;

CREATE FUNCTION lock_renew(p_within_ms bigint, p_expect_us bigint, p_lineage text, p_keys text[], p_sessions text[],
    p_tokens bigint[], p_ttls bigint[])
RETURNS SETOF lock_answer LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz;
BEGIN
    PERFORM lock_begin(p_within_ms, p_expect_us, p_lineage);
    PERFORM 1 FROM lock_grant WHERE lock_key = ANY (p_keys) ORDER BY lock_key FOR UPDATE;
    v_now := lock_now();
    UPDATE lock_grant g SET ttl_ms = coalesce(r.ttl_ms, g.ttl_ms),
        expires_at = v_now + lock_span(coalesce(r.ttl_ms, g.ttl_ms))
    FROM (SELECT DISTINCT ON (a.lock_key) a.*
          FROM unnest(p_keys, p_sessions, p_tokens, p_ttls)
              WITH ORDINALITY AS a (lock_key, session_id, token, ttl_ms, ord)
          ORDER BY a.lock_key, a.ord DESC) r
    JOIN lock_session s ON s.session_id = r.session_id AND s.expires_at > v_now
    WHERE g.lock_key = r.lock_key AND g.session_id = r.session_id AND g.token = r.token AND g.expires_at > v_now;
    RETURN QUERY
        SELECT a.ord,
            CASE WHEN g.lock_key IS NULL THEN 'NOT_FOUND'
                 WHEN g.session_id = a.session_id AND g.token = a.token AND g.expires_at > v_now
                     AND s.expires_at > v_now THEN 'RENEWED'
                 ELSE 'NOT_HOLDER' END,
            a.lock_key, g.session_id::text, s.owner, g.token, g.ttl_ms,
            lock_left(least(g.expires_at, s.expires_at), v_now), lock_us(v_now), lock_ms(g.granted_at),
            g.request_id, g.metadata, NULL::bigint, NULL::text
        FROM unnest(p_keys, p_sessions, p_tokens) WITH ORDINALITY AS a (lock_key, session_id, token, ord)
        LEFT JOIN lock_grant g ON g.lock_key = a.lock_key
        LEFT JOIN lock_session s ON s.session_id = g.session_id;
END $$;

CREATE FUNCTION lock_release(p_within_ms bigint, p_expect_us bigint, p_lineage text, p_keys text[], p_sessions text[],
    p_tokens bigint[])
RETURNS SETOF lock_answer LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz;
    v_asks lock_ask[];
BEGIN
    PERFORM lock_begin(p_within_ms, p_expect_us, p_lineage);
    PERFORM 1 FROM lock_grant WHERE lock_key = ANY (p_keys) ORDER BY lock_key FOR UPDATE;
    v_now := lock_now();
    SELECT array_agg(ROW(a.ord, a.nth, a.lock_key, a.session_id, NULL, NULL, NULL, a.token, a.owner, a.verdict)::lock_ask
            ORDER BY a.ord)
        INTO v_asks
        FROM (SELECT b.*, row_number() OVER (PARTITION BY b.lock_key, b.verdict ORDER BY b.ord) AS nth
              FROM (SELECT a.ord, a.lock_key, a.session_id, a.token, s.owner,
                        CASE WHEN g.lock_key IS NULL THEN 'NOT_FOUND'
                             WHEN g.token <> a.token THEN 'NOT_HOLDER'
                             WHEN g.session_id IS NULL THEN 'ALREADY_FREE'
                             WHEN g.session_id <> a.session_id THEN 'NOT_HOLDER'
                             WHEN least(g.expires_at, s.expires_at) <= v_now THEN 'EXPIRED'
                             ELSE 'RELEASED' END AS verdict
                    FROM unnest(p_keys, p_sessions, p_tokens) WITH ORDINALITY AS a (lock_key, session_id, token, ord)
                    LEFT JOIN lock_grant g ON g.lock_key = a.lock_key
                    LEFT JOIN lock_session s ON s.session_id = g.session_id) b) a;
    UPDATE lock_grant g SET session_id = NULL, expires_at = v_now, metadata = NULL, request_id = NULL
        FROM unnest(v_asks) a
        WHERE a.verdict IN ('RELEASED', 'EXPIRED') AND a.nth = 1 AND g.lock_key = a.lock_key;
    RETURN QUERY
        SELECT a.ord,
            CASE WHEN a.verdict = 'EXPIRED' OR (a.verdict = 'RELEASED' AND a.nth > 1) THEN 'ALREADY_FREE'
                 ELSE a.verdict END,
            a.lock_key, NULL::text, NULL::text, a.token, NULL::bigint, NULL::bigint, lock_us(v_now), NULL::bigint,
            NULL::text, NULL::text, NULL::bigint, NULL::text
        FROM unnest(v_asks) a;
    PERFORM lock_record(ARRAY(
        SELECT ROW(a.verdict, a.lock_key, a.session_id, a.token,
            CASE WHEN a.verdict = 'EXPIRED' THEN 'lease-clock' ELSE a.owner END, NULL)::lock_fact
        FROM unnest(v_asks) a WHERE a.verdict IN ('RELEASED', 'EXPIRED') AND a.nth = 1 ORDER BY a.ord));
END $$;

CREATE FUNCTION lock_revoke(p_within_ms bigint, p_expect_us bigint, p_lineage text, p_key text, p_token bigint,
    p_operator text, p_reason text)
RETURNS SETOF lock_answer LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz;
    v_held record;
    v_outcome text;
    v_doubt text;
    v_token bigint;
    v_facts lock_fact[] := '{}';
BEGIN
    PERFORM lock_begin(p_within_ms, p_expect_us, p_lineage);
    PERFORM 1 FROM lock_grant WHERE lock_key = p_key FOR UPDATE;
    v_now := lock_now();
    SELECT g.*, s.owner, s.expires_at AS session_expires_at INTO v_held
        FROM lock_grant g LEFT JOIN lock_session s ON s.session_id = g.session_id WHERE g.lock_key = p_key;
    IF NOT FOUND THEN
        v_outcome := 'NOT_FOUND';
    ELSIF v_held.session_id IS NULL OR v_held.expires_at <= v_now THEN
        v_outcome := 'NOT_HELD';
    ELSIF v_held.token <> p_token THEN
        v_outcome := 'NOT_HOLDER';
    ELSE
        SELECT o_doubt, o_facts INTO v_doubt, v_facts FROM lock_mint_doubt(ARRAY[p_key]);
        IF v_doubt IS NOT NULL THEN
            v_outcome := 'TOKEN_REGRESSION';
        ELSE
            v_outcome := 'REVOKED';
            UPDATE lock_grant SET session_id = NULL, token = nextval('lock_token_seq'), expires_at = v_now,
                metadata = NULL, request_id = NULL
            WHERE lock_key = p_key RETURNING token INTO v_token;
            -- The revoked token, so that whoever holds it recognises itself; the minted one stands in the key's row.
            v_facts := ARRAY[ROW('REVOKED', p_key, v_held.session_id, p_token, p_operator, p_reason)::lock_fact];
        END IF;
    END IF;
    RETURN QUERY SELECT 1::bigint, v_outcome, p_key, v_held.session_id::text, v_held.owner, v_held.token, v_held.ttl_ms,
        lock_left(least(v_held.expires_at, v_held.session_expires_at), v_now), lock_us(v_now), lock_ms(v_held.granted_at),
        v_held.request_id, v_held.metadata, v_token, v_doubt;
    PERFORM lock_record(v_facts);
END $$;

-- Keys of a batch, or a page of keys in byte order.
CREATE FUNCTION lock_inspect(p_within_ms bigint, p_expect_us bigint, p_lineage text, p_keys text[])
RETURNS SETOF lock_answer LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz;
BEGIN
    PERFORM lock_begin(p_within_ms, p_expect_us, p_lineage);
    v_now := lock_now();
    RETURN QUERY
        SELECT a.ord,
            CASE WHEN g.lock_key IS NULL THEN 'UNKNOWN'
                 WHEN g.session_id IS NOT NULL AND g.expires_at > v_now THEN 'HELD' ELSE 'FREE' END,
            a.lock_key, g.session_id::text, s.owner, g.token, g.ttl_ms,
            lock_left(least(g.expires_at, s.expires_at), v_now), lock_us(v_now), lock_ms(g.granted_at),
            g.request_id, g.metadata, NULL::bigint, NULL::text
        FROM unnest(p_keys) WITH ORDINALITY AS a (lock_key, ord)
        LEFT JOIN lock_grant g ON g.lock_key = a.lock_key
        LEFT JOIN lock_session s ON s.session_id = g.session_id;
END $$;

CREATE FUNCTION lock_list(p_within_ms bigint, p_expect_us bigint, p_lineage text, p_from text, p_after text, p_below text,
    p_limit bigint)
RETURNS SETOF lock_answer LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY SELECT * FROM lock_inspect(p_within_ms, p_expect_us, p_lineage, ARRAY(
        SELECT g.lock_key::text FROM lock_grant g
        WHERE g.lock_key >= p_from AND g.lock_key > p_after AND g.lock_key < p_below ORDER BY g.lock_key LIMIT p_limit));
END $$;

-- A session's row, then one row per grant that it still holds.
CREATE FUNCTION lock_session_rows(p_ids text[], p_outcome text, p_now timestamptz) RETURNS SETOF lock_answer
LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
        SELECT a.ord, CASE WHEN s.session_id IS NULL THEN 'SESSION_NOT_FOUND' ELSE p_outcome END, NULL::text, a.id, s.owner,
            NULL::bigint, s.ttl_ms, lock_left(s.expires_at, p_now), lock_us(p_now), lock_ms(s.opened_at), NULL::text,
            s.metadata, lock_ms(s.last_heartbeat_at), NULL::text
        FROM unnest(p_ids) WITH ORDINALITY AS a (id, ord)
        LEFT JOIN lock_session s ON s.session_id = a.id AND s.expires_at > p_now;
    RETURN QUERY
        SELECT a.ord, 'HELD', g.lock_key::text, g.session_id::text, NULL::text, g.token, g.ttl_ms,
            lock_left(least(g.expires_at, s.expires_at), p_now), NULL::bigint, NULL::bigint, NULL::text, NULL::text,
            NULL::bigint, NULL::text
        FROM unnest(p_ids) WITH ORDINALITY AS a (id, ord)
        JOIN lock_session s ON s.session_id = a.id AND s.expires_at > p_now
        JOIN lock_grant g ON g.session_id = s.session_id AND g.expires_at > p_now
        ORDER BY a.ord, g.lock_key;
END $$;

CREATE FUNCTION lock_open(p_within_ms bigint, p_expect_us bigint, p_lineage text, p_ids text[], p_owners text[],
    p_ttls bigint[], p_metadata text[])
RETURNS SETOF lock_answer LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz;
    v_facts lock_fact[];
BEGIN
    PERFORM lock_begin(p_within_ms, p_expect_us, p_lineage);
    v_now := lock_now();
    WITH opened AS (
        INSERT INTO lock_session (session_id, owner, metadata, ttl_ms, opened_at, expires_at, last_heartbeat_at)
        SELECT a.id, a.owner, a.metadata, a.ttl_ms, v_now, v_now + lock_span(a.ttl_ms), v_now
        FROM unnest(p_ids, p_owners, p_ttls, p_metadata) AS a (id, owner, ttl_ms, metadata)
        ORDER BY a.id COLLATE "C"
        ON CONFLICT (session_id) DO NOTHING
        RETURNING session_id, owner
    )
    SELECT coalesce(array_agg(ROW('SESSION_OPENED', NULL, session_id, NULL, owner, NULL)::lock_fact
            ORDER BY array_position(p_ids, session_id::text)), '{}')
        INTO v_facts FROM opened;
    -- A later statement: it sees the row that an insert waited for.
    IF EXISTS (SELECT 1 FROM unnest(p_ids, p_owners, p_ttls, p_metadata) AS a (id, owner, ttl_ms, metadata)
               LEFT JOIN lock_session s ON s.session_id = a.id
               WHERE (s.owner, s.ttl_ms, s.metadata) IS DISTINCT FROM (a.owner, a.ttl_ms, a.metadata)) THEN
        RAISE EXCEPTION 'a session of that id exists with other fields' USING ERRCODE = 'DL004';
    END IF;
    RETURN QUERY SELECT * FROM lock_session_rows(p_ids, 'SESSION', v_now);
    PERFORM lock_record(v_facts);
END $$;

CREATE FUNCTION lock_heartbeat(p_within_ms bigint, p_expect_us bigint, p_lineage text, p_ids text[], p_witnesses bigint[])
RETURNS SETOF lock_answer LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz;
    v_last bigint;
    v_believed bigint;
    v_refused record;
    v_seen record;
    v_facts lock_fact[] := '{}';
BEGIN
    PERFORM lock_begin(p_within_ms, p_expect_us, p_lineage);
    PERFORM 1 FROM lock_session WHERE session_id = ANY (p_ids) ORDER BY session_id FOR NO KEY UPDATE;
    v_now := lock_now();
    SELECT greatest(token_floor, lock_last()) INTO v_last FROM lock_lineage WHERE id = 1;
    v_believed := least(v_last + 2199023255552, 9007199254740991);
    UPDATE lock_session s SET expires_at = v_now + lock_span(s.ttl_ms), last_heartbeat_at = v_now
        WHERE s.expires_at > v_now AND s.session_id IN (
            SELECT a.id FROM unnest(p_ids, p_witnesses) AS a (id, witness)
            WHERE a.witness IS NULL OR a.witness <= v_believed);
    RETURN QUERY SELECT r.ord, r.outcome, r.lock_key, r.session_id, r.owner, r.token, r.ttl_ms, r.left_us, r.at_us,
        r.since_ms, r.request_id, r.metadata, v_believed, r.detail
        FROM lock_session_rows(p_ids, 'ALIVE', v_now) r;
    SELECT v_facts || coalesce(array_agg(ROW('WITNESS_REFUSED', NULL, a.id, a.witness, s.owner, NULL)::lock_fact
            ORDER BY a.ord), '{}')
        INTO v_facts
        FROM unnest(p_ids, p_witnesses) WITH ORDINALITY AS a (id, witness, ord)
        JOIN lock_session s ON s.session_id = a.id AND s.expires_at > v_now
        WHERE a.witness > v_believed;
    SELECT a.id, a.witness, s.owner INTO v_seen
        FROM unnest(p_ids, p_witnesses) WITH ORDINALITY AS a (id, witness, ord)
        JOIN lock_session s ON s.session_id = a.id AND s.expires_at > v_now
        WHERE a.witness > v_last AND a.witness <= v_believed ORDER BY a.ord LIMIT 1;
    IF FOUND THEN
        v_facts := v_facts || lock_doubt(
            format('the last token minted is %s, a client has seen %s', v_last, v_seen.witness),
            v_seen.id, v_seen.owner, v_seen.witness);
    END IF;
    PERFORM lock_record(v_facts);
END $$;

CREATE FUNCTION lock_sessions(p_within_ms bigint, p_expect_us bigint, p_lineage text, p_ids text[], p_after text,
    p_limit bigint)
RETURNS SETOF lock_answer LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz;
BEGIN
    PERFORM lock_begin(p_within_ms, p_expect_us, p_lineage);
    v_now := lock_now();
    RETURN QUERY SELECT * FROM lock_session_rows(coalesce(p_ids, ARRAY(
        SELECT s.session_id::text FROM lock_session s WHERE s.session_id > p_after AND s.expires_at > v_now
        ORDER BY s.session_id LIMIT p_limit)), 'SESSION', v_now);
END $$;

CREATE FUNCTION lock_close(p_within_ms bigint, p_expect_us bigint, p_lineage text, p_ids text[])
RETURNS SETOF lock_answer LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz;
    v_facts lock_fact[];
BEGIN
    PERFORM lock_begin(p_within_ms, p_expect_us, p_lineage);
    PERFORM 1 FROM lock_session WHERE session_id = ANY (p_ids) ORDER BY session_id FOR UPDATE;
    PERFORM 1 FROM lock_grant WHERE session_id = ANY (p_ids) ORDER BY lock_key FOR UPDATE;
    v_now := lock_now();
    SELECT coalesce(array_agg(f.fact ORDER BY f.ord, f.part, f.lock_key), '{}') INTO v_facts FROM (
        SELECT a.ord, 1 AS part, g.lock_key,
            ROW('RELEASED', g.lock_key, s.session_id, g.token, s.owner, NULL)::lock_fact AS fact
        FROM (SELECT id, min(ord) AS ord FROM unnest(p_ids) WITH ORDINALITY AS u (id, ord) GROUP BY id) a
        JOIN lock_session s ON s.session_id = a.id
        JOIN lock_grant g ON g.session_id = s.session_id
        UNION ALL
        SELECT a.ord, 2, NULL, ROW('SESSION_CLOSED', NULL, s.session_id, NULL, s.owner, NULL)::lock_fact
        FROM (SELECT id, min(ord) AS ord FROM unnest(p_ids) WITH ORDINALITY AS u (id, ord) GROUP BY id) a
        JOIN lock_session s ON s.session_id = a.id) f;
    UPDATE lock_grant SET session_id = NULL, expires_at = v_now, metadata = NULL, request_id = NULL
        WHERE session_id = ANY (p_ids);
    DELETE FROM lock_session WHERE session_id = ANY (p_ids);
    RETURN QUERY
        SELECT array_position(p_ids, f.session_id)::bigint, 'RELEASED', f.lock_key, f.session_id, NULL::text, f.token,
            NULL::bigint, NULL::bigint, lock_us(v_now), NULL::bigint, NULL::text, NULL::text, NULL::bigint, NULL::text
        FROM unnest(v_facts) f WHERE f.kind = 'RELEASED';
    PERFORM lock_record(v_facts);
END $$;

-- Ends what is due, at most p_limit grants and sessions together. A session with more grants than fit ends over several
-- sweeps: its grants first, the session with the last of them. What another transaction has in its hands is left for
-- the next sweep.
CREATE FUNCTION lock_expire(p_within_ms bigint, p_expect_us bigint, p_lineage text, p_limit bigint)
RETURNS SETOF lock_answer LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz;
    v_due text[];
    v_keys text[];
    v_own text[];
    v_of text[];
    v_all text[] := '{}';
    v_ended text[] := '{}';
    v_id text;
    v_left bigint;
    v_more boolean := false;
    v_next timestamptz;
    v_facts lock_fact[] := '{}';
    v_part lock_fact[];
BEGIN
    PERFORM lock_begin(p_within_ms, p_expect_us, p_lineage);
    v_now := lock_now();
    v_due := ARRAY(SELECT session_id::text FROM lock_session WHERE expires_at <= v_now
        ORDER BY expires_at, session_id LIMIT p_limit + 1 FOR UPDATE SKIP LOCKED);
    v_own := ARRAY(SELECT lock_key::text FROM lock_grant WHERE session_id IS NOT NULL AND expires_at <= v_now
        ORDER BY expires_at, lock_key LIMIT p_limit + 1);
    IF cardinality(v_own) > p_limit THEN
        v_more := true;
        v_own := v_own[1:p_limit];
    END IF;
    v_left := p_limit - cardinality(v_own);
    v_keys := v_own;
    FOREACH v_id IN ARRAY v_due LOOP
        IF v_left <= 0 THEN
            v_more := true;
            EXIT;
        END IF;
        -- Nobody can add to these: a new grant needs the session's row, which is locked.
        v_of := ARRAY(SELECT lock_key::text FROM lock_grant
            WHERE session_id = v_id AND expires_at > v_now ORDER BY lock_key LIMIT v_left);
        v_keys := v_keys || v_of;
        v_left := v_left - cardinality(v_of);
        IF v_left <= 0 OR (v_more AND EXISTS (
                SELECT 1 FROM lock_grant WHERE session_id = v_id AND expires_at <= v_now)) THEN
            v_more := true;
            EXIT;
        END IF;
        v_ended := v_ended || v_id;
        v_left := v_left - 1;
    END LOOP;
    PERFORM 1 FROM lock_grant WHERE lock_key = ANY (v_keys) ORDER BY lock_key FOR UPDATE;
    -- Judged again now that the rows are locked: one may have been renewed or freed meanwhile.
    WITH ended AS (
        UPDATE lock_grant g SET session_id = NULL, expires_at = v_now, metadata = NULL, request_id = NULL
        FROM lock_grant o
        WHERE g.lock_key = ANY (v_keys) AND o.lock_key = g.lock_key AND g.session_id IS NOT NULL
            AND (g.expires_at <= v_now OR g.session_id = ANY (v_due))
        RETURNING g.lock_key, o.session_id, g.token
    )
    SELECT coalesce(array_agg(ROW('EXPIRED', lock_key, session_id, token, 'lease-clock', NULL)::lock_fact
        ORDER BY lock_key), '{}') INTO v_facts FROM ended;
    RETURN QUERY
        SELECT 1::bigint, CASE WHEN f.session_id = ANY (v_ended) AND NOT f.lock_key = ANY (v_own) THEN 'RELEASED' ELSE 'EXPIRED' END,
            f.lock_key, f.session_id, NULL::text, f.token, NULL::bigint, NULL::bigint, lock_us(v_now),
            NULL::bigint, NULL::text, NULL::text, NULL::bigint, NULL::text
        FROM unnest(v_facts) f;
    WITH gone AS (
        DELETE FROM lock_session s WHERE s.session_id = ANY (v_ended) RETURNING s.session_id
    )
    SELECT coalesce(array_agg(ROW('SESSION_EXPIRED', NULL, session_id, NULL, 'lease-clock', NULL)::lock_fact
        ORDER BY session_id), '{}') INTO v_part FROM gone;
    RETURN QUERY
        SELECT 1::bigint, 'SESSION_EXPIRED', NULL::text, f.session_id, NULL::text, NULL::bigint, NULL::bigint,
            NULL::bigint, NULL::bigint, NULL::bigint, NULL::text, NULL::text, NULL::bigint, NULL::text
        FROM unnest(v_part) f;
    v_facts := v_facts || v_part;
    SELECT least((SELECT min(expires_at) FROM lock_session),
                 (SELECT min(expires_at) FROM lock_grant WHERE session_id IS NOT NULL)) INTO v_next;
    RETURN QUERY SELECT 1::bigint, CASE WHEN v_more THEN 'MORE' ELSE 'END' END, NULL::text, NULL::text, NULL::text,
        NULL::bigint, NULL::bigint, CASE WHEN v_next IS NOT NULL THEN lock_left(v_next, v_now) END, lock_us(v_now),
        NULL::bigint, NULL::text, NULL::text, NULL::bigint, NULL::text;
    PERFORM lock_record(v_facts);
END $$;

CREATE FUNCTION lock_purge(p_retention_ms bigint, p_limit bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_gone bigint;
BEGIN
    DELETE FROM lock_grant WHERE session_id IS NULL AND lock_key IN (
        SELECT lock_key FROM lock_grant
        WHERE session_id IS NULL AND expires_at <= lock_now() - lock_span(p_retention_ms)
        ORDER BY expires_at LIMIT p_limit FOR UPDATE SKIP LOCKED);
    GET DIAGNOSTICS v_gone = ROW_COUNT;
    RETURN v_gone;
END $$;

-- The highest seq ever given to a fact that is committed, also when its row was dropped.
CREATE FUNCTION lock_event_last() RETURNS bigint LANGUAGE sql VOLATILE AS
    'SELECT greatest(coalesce((SELECT max(seq) FROM lock_event), 0),
         coalesce((SELECT max(last_seq) FROM lock_event_seal), 0))';

-- Drops whole sealed segments from the oldest on. The last seal that was dropped from stays: the next one's prev_hash is
-- its hash, so that what is left can be verified from its first row on.
CREATE FUNCTION lock_drop_sealed(p_retention_ms bigint, p_limit bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_from bigint;
    v_up_to bigint;
    v_gone bigint := 0;
    v_seal record;
    v_size bigint;
BEGIN
    SELECT dropped_up_to INTO STRICT v_from FROM lock_event_retention WHERE id = 1 FOR UPDATE;
    v_up_to := v_from;
    FOR v_seal IN
        SELECT s.first_seq, s.last_seq, e.at FROM lock_event_seal s JOIN lock_event e ON e.seq = s.last_seq
        WHERE s.last_seq > v_from ORDER BY s.first_seq
    LOOP
        SELECT count(*) INTO v_size FROM lock_event WHERE seq BETWEEN v_seal.first_seq AND v_seal.last_seq;
        EXIT WHEN v_seal.at > lock_now() - lock_span(p_retention_ms) OR v_gone + v_size > p_limit;
        v_up_to := v_seal.last_seq;
        v_gone := v_gone + v_size;
    END LOOP;
    IF v_up_to > v_from THEN
        UPDATE lock_event_retention SET dropped_up_to = v_up_to WHERE id = 1;
        DELETE FROM lock_event WHERE seq <= v_up_to;
        DELETE FROM lock_event_seal WHERE last_seq < v_up_to;
    END IF;
    RETURN v_gone;
END $$;

-- Plans that stay the same whatever the tables' statistics say: every access here is by an index.
DO $$
DECLARE
    f regprocedure;
BEGIN
    FOR f IN SELECT p.oid FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang
             WHERE p.pronamespace = current_schema()::regnamespace AND l.lanname = 'plpgsql' LOOP
        EXECUTE format('ALTER FUNCTION %s SET search_path FROM CURRENT', f);
        EXECUTE format('ALTER FUNCTION %s SET enable_seqscan = off', f);
        EXECUTE format('ALTER FUNCTION %s SET enable_hashjoin = off', f);
        EXECUTE format('ALTER FUNCTION %s SET enable_mergejoin = off', f);
        EXECUTE format('ALTER FUNCTION %s SET plan_cache_mode = force_generic_plan', f);
    END LOOP;
    FOR f IN SELECT p.oid FROM pg_proc p WHERE p.pronamespace = current_schema()::regnamespace
             AND p.proname IN ('lock_last', 'lock_event_last', 'lock_lineage_row') LOOP
        EXECUTE format('ALTER FUNCTION %s SET search_path FROM CURRENT', f);
    END LOOP;
END $$;
