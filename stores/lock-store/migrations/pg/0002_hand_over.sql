-- How a key goes from one holder to the next: the delay after an unclean loss, and the request to yield.
--
-- Columns with a default, a function beside the old one, and functions of before with the same arguments and answers: a
-- program that knows only the schema of before runs on beside one that knows this. What the two tell each other:
-- a closed key is shown to the former as one that is held until the delay has passed, by nobody it knows.

-- lock_delay_ms: what the grant asked for; of a tombstone, what its last grant had asked for.
-- closed_until: set where a tombstone's last grant was lost uncleanly and asked for a delay: nobody is granted the key
-- before. A sweep takes it away once it is over, so that what is over stays so whatever the clock does afterwards.
-- yield_*: who asked the holder to give the key up, why and when: the first to ask. Gone with the grant.
ALTER TABLE lock_grant
    ADD COLUMN lock_delay_ms bigint NOT NULL DEFAULT 0 CHECK (lock_delay_ms BETWEEN 0 AND 60000),
    ADD COLUMN closed_until timestamptz,
    ADD COLUMN yield_by text,
    ADD COLUMN yield_reason text,
    ADD COLUMN yield_at timestamptz;
CREATE INDEX lock_grant_closed ON lock_grant (closed_until) WHERE closed_until IS NOT NULL;

-- What an answer says of a grant beyond its own columns, as JSON in its detail: null where there is nothing to say.
CREATE FUNCTION lock_more(delay_ms bigint, yield_by text, yield_reason text, yield_at timestamptz) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN delay_ms > 0 OR yield_by IS NOT NULL THEN
        json_build_object('delay_ms', delay_ms, 'by', yield_by, 'reason', yield_reason, 'at', lock_ms(yield_at))::text END
$$;

-- Gives every live session and grant its full TTL again, and every closed key its full delay: whoever cannot tell how
-- much time has passed keeps to the lower bounds that these are.
CREATE OR REPLACE FUNCTION lock_full_ttl_again(p_within_ms bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz;
BEGIN
    PERFORM set_config('lock_timeout', p_within_ms::text, true);
    PERFORM 1 FROM lock_clock WHERE id = 1 FOR UPDATE;
    PERFORM 1 FROM lock_session ORDER BY session_id FOR UPDATE;
    PERFORM 1 FROM lock_grant WHERE session_id IS NOT NULL OR closed_until IS NOT NULL ORDER BY lock_key FOR UPDATE;
    v_now := lock_now();
    UPDATE lock_session SET expires_at = v_now + lock_span(ttl_ms);
    UPDATE lock_grant SET expires_at = v_now + lock_span(ttl_ms) WHERE session_id IS NOT NULL;
    UPDATE lock_grant SET closed_until = v_now + lock_span(lock_delay_ms) WHERE closed_until IS NOT NULL;
    UPDATE lock_clock SET watched_at = v_now WHERE id = 1;
    RETURN lock_us(v_now);
END $$;

-- What a lock server does that starts and knows nothing of this clock yet. Where another one, or it itself before, has
-- watched the clock until p_tolerance_ms ago, no jump of more than that can hide in between, and nothing is done. Else the
-- time since the last watch does not count: each lease and each delay has left what it had left then, and at most the
-- whole of it. So a jump while nobody watched ends nothing early, and a lock server that starts over and over delays no
-- end by more than the time in which nobody ran. Answers the milliseconds that do not count.
CREATE OR REPLACE FUNCTION lock_resume(p_within_ms bigint, p_tolerance_ms bigint) RETURNS bigint LANGUAGE plpgsql AS $$
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
    PERFORM 1 FROM lock_grant WHERE session_id IS NOT NULL OR closed_until IS NOT NULL ORDER BY lock_key FOR UPDATE;
    v_now := lock_now();
    UPDATE lock_session SET expires_at = least(expires_at + (v_now - v_watched), v_now + lock_span(ttl_ms));
    UPDATE lock_grant SET expires_at = least(expires_at + (v_now - v_watched), v_now + lock_span(ttl_ms))
        WHERE session_id IS NOT NULL;
    UPDATE lock_grant
        SET closed_until = least(closed_until + (v_now - v_watched), v_now + lock_span(lock_delay_ms))
        WHERE closed_until IS NOT NULL;
    UPDATE lock_clock SET watched_at = v_now WHERE id = 1;
    RETURN lock_ms(v_now) - lock_ms(v_watched);
END $$;

-- As before, and with what each asks for as its delay (by the item's place in the batch).
CREATE FUNCTION lock_acquire(p_within_ms bigint, p_expect_us bigint, p_lineage text, p_keys text[], p_sessions text[],
    p_requests text[], p_ttls bigint[], p_metadata text[], p_witnesses bigint[], p_delays bigint[])
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
            g.metadata, NULL, lock_more(g.lock_delay_ms, g.yield_by, g.yield_reason, g.yield_at))::lock_answer)
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
        -- What has ended by its own lease is ended in this transaction, which closes its key where it asked for a
        -- delay. Whether its session lives is not asked.
        WITH ended AS (
            UPDATE lock_grant g SET session_id = NULL, expires_at = v_now, metadata = NULL, request_id = NULL,
                closed_until = CASE WHEN g.lock_delay_ms > 0 THEN v_now + lock_span(g.lock_delay_ms) END,
                yield_by = NULL, yield_reason = NULL, yield_at = NULL
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
                    request_id = a.request_id, lock_delay_ms = coalesce(p_delays[a.ord], 0), closed_until = NULL,
                    yield_by = NULL, yield_reason = NULL, yield_at = NULL
                FROM unnest(v_asks) a
                WHERE a.nth = v_nth AND a.verdict IS NULL AND g.lock_key = a.lock_key AND g.session_id IS NULL
                    AND (g.closed_until IS NULL OR g.closed_until <= v_now)
                RETURNING g.lock_key, g.token
            )
            SELECT coalesce(jsonb_object_agg(lock_key, token), '{}') INTO v_updated FROM minted;
            -- A key without a row: where another transaction is quicker, its row is locked and seen by the update branch.
            WITH minted AS (
                INSERT INTO lock_grant AS g
                    (lock_key, session_id, token, ttl_ms, granted_at, expires_at, metadata, request_id, lock_delay_ms)
                SELECT a.lock_key, a.session_id, a.minted, a.ttl_ms, v_now, v_now + lock_span(a.ttl_ms), a.metadata,
                    a.request_id, coalesce(p_delays[a.ord], 0)
                FROM (SELECT b.*, nextval('lock_token_seq') AS minted
                      FROM (SELECT * FROM unnest(v_asks) a
                            WHERE a.nth = v_nth AND a.verdict IS NULL
                                AND NOT EXISTS (SELECT 1 FROM lock_grant h WHERE h.lock_key = a.lock_key)
                            ORDER BY a.ord) b) a
                ORDER BY a.lock_key COLLATE "C"
                ON CONFLICT (lock_key) DO UPDATE SET session_id = excluded.session_id,
                    token = nextval('lock_token_seq'), ttl_ms = excluded.ttl_ms, granted_at = excluded.granted_at,
                    expires_at = excluded.expires_at, metadata = excluded.metadata, request_id = excluded.request_id,
                    lock_delay_ms = excluded.lock_delay_ms, closed_until = NULL,
                    yield_by = NULL, yield_reason = NULL, yield_at = NULL
                WHERE g.session_id IS NULL AND (g.closed_until IS NULL OR g.closed_until <= v_now)
                RETURNING g.lock_key, g.token
            )
            SELECT v_updated || coalesce(jsonb_object_agg(lock_key, token), '{}') INTO v_granted FROM minted;
            IF v_known < (SELECT count(*) FROM unnest(v_asks) a WHERE a.nth = 1) THEN
                -- A key that had no row may have got one from another transaction, which is not locked here yet. Where it is
                -- free again already, everything is begun anew.
                PERFORM 1 FROM lock_grant WHERE lock_key = ANY (p_keys) ORDER BY lock_key FOR UPDATE;
                IF EXISTS (SELECT 1 FROM unnest(v_asks) a JOIN lock_grant g ON g.lock_key = a.lock_key
                           WHERE a.nth = v_nth AND a.verdict IS NULL AND g.session_id IS NULL
                               AND (g.closed_until IS NULL OR g.closed_until <= v_now)) THEN
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
                     WHEN g.session_id IS NULL THEN 'DELAYED'
                     WHEN g.session_id = a.session_id AND g.request_id = a.request_id THEN 'REPLAYED'
                     WHEN g.session_id = a.session_id THEN 'HELD_BY_SELF'
                     ELSE 'HELD_BY_OTHER' END,
                a.lock_key, g.session_id::text, s.owner, g.token, g.ttl_ms,
                CASE WHEN g.session_id IS NULL THEN lock_left(g.closed_until, v_now)
                     ELSE lock_left(least(g.expires_at, s.expires_at), v_now) END,
                lock_us(v_now), lock_ms(g.granted_at), g.request_id, g.metadata, v_believed,
                coalesce(v_doubt, lock_more(g.lock_delay_ms, g.yield_by, g.yield_reason, g.yield_at))
            FROM unnest(v_asks) a
            LEFT JOIN lock_grant g ON g.lock_key = a.lock_key
            LEFT JOIN lock_session s ON s.session_id = g.session_id
            WHERE a.nth = v_nth;
    END LOOP;
    PERFORM lock_record(v_facts);
END $$;

-- The one that a program of before calls: it asks for no delay, and is told of a closed key as of one that is held.
CREATE OR REPLACE FUNCTION lock_acquire(p_within_ms bigint, p_expect_us bigint, p_lineage text, p_keys text[],
    p_sessions text[], p_requests text[], p_ttls bigint[], p_metadata text[], p_witnesses bigint[])
RETURNS SETOF lock_answer LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
        SELECT r.ord, CASE WHEN r.outcome = 'DELAYED' THEN 'HELD_BY_OTHER' ELSE r.outcome END, r.lock_key,
            CASE WHEN r.outcome = 'DELAYED' THEN 'lock-delay' ELSE r.session_id END,
            CASE WHEN r.outcome = 'DELAYED' THEN 'nobody: closed after an unclean loss' ELSE r.owner END,
            r.token, r.ttl_ms, r.left_us, r.at_us, r.since_ms, r.request_id, r.metadata, r.number, r.detail
        FROM lock_acquire(p_within_ms, p_expect_us, p_lineage, p_keys, p_sessions, p_requests, p_ttls, p_metadata,
            p_witnesses, NULL::bigint[]) r;
END $$;

CREATE OR REPLACE FUNCTION lock_renew(p_within_ms bigint, p_expect_us bigint, p_lineage text, p_keys text[],
    p_sessions text[], p_tokens bigint[], p_ttls bigint[])
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
            g.request_id, g.metadata, NULL::bigint, lock_more(g.lock_delay_ms, g.yield_by, g.yield_reason, g.yield_at)
        FROM unnest(p_keys, p_sessions, p_tokens) WITH ORDINALITY AS a (lock_key, session_id, token, ord)
        LEFT JOIN lock_grant g ON g.lock_key = a.lock_key
        LEFT JOIN lock_session s ON s.session_id = g.session_id;
END $$;

CREATE OR REPLACE FUNCTION lock_release(p_within_ms bigint, p_expect_us bigint, p_lineage text, p_keys text[],
    p_sessions text[], p_tokens bigint[])
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
    -- One that comes too late has lost the key uncleanly.
    UPDATE lock_grant g SET session_id = NULL, expires_at = v_now, metadata = NULL, request_id = NULL,
        closed_until = CASE WHEN a.verdict = 'EXPIRED' AND g.lock_delay_ms > 0 THEN v_now + lock_span(g.lock_delay_ms) END,
        yield_by = NULL, yield_reason = NULL, yield_at = NULL
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

CREATE OR REPLACE FUNCTION lock_revoke(p_within_ms bigint, p_expect_us bigint, p_lineage text, p_key text, p_token bigint,
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
                metadata = NULL, request_id = NULL,
                closed_until = CASE WHEN lock_delay_ms > 0 THEN v_now + lock_span(lock_delay_ms) END,
                yield_by = NULL, yield_reason = NULL, yield_at = NULL
            WHERE lock_key = p_key RETURNING token INTO v_token;
            -- The revoked token, so that whoever holds it recognises itself; the minted one stands in the key's row.
            v_facts := ARRAY[ROW('REVOKED', p_key, v_held.session_id, p_token, p_operator, p_reason)::lock_fact];
        END IF;
    END IF;
    RETURN QUERY SELECT 1::bigint, v_outcome, p_key, v_held.session_id::text, v_held.owner, v_held.token, v_held.ttl_ms,
        lock_left(least(v_held.expires_at, v_held.session_expires_at), v_now), lock_us(v_now), lock_ms(v_held.granted_at),
        v_held.request_id, v_held.metadata, v_token,
        coalesce(v_doubt, lock_more(v_held.lock_delay_ms, v_held.yield_by, v_held.yield_reason, v_held.yield_at));
    PERFORM lock_record(v_facts);
END $$;

-- Asks the holder of a live grant to give it up. The first to ask is kept, and is a fact.
CREATE FUNCTION lock_ask_to_yield(p_within_ms bigint, p_expect_us bigint, p_lineage text, p_key text, p_token bigint,
    p_operator text, p_reason text)
RETURNS SETOF lock_answer LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz;
    v_held record;
    v_outcome text := 'ASKED';
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
    ELSIF v_held.yield_by IS NULL THEN
        UPDATE lock_grant SET yield_by = p_operator, yield_reason = p_reason, yield_at = v_now WHERE lock_key = p_key
            RETURNING yield_by, yield_reason, yield_at
            INTO v_held.yield_by, v_held.yield_reason, v_held.yield_at;
        v_facts := ARRAY[ROW('YIELD_REQUESTED', p_key, v_held.session_id, p_token, p_operator, p_reason)::lock_fact];
    END IF;
    RETURN QUERY SELECT 1::bigint, v_outcome, p_key, v_held.session_id::text, v_held.owner, v_held.token, v_held.ttl_ms,
        lock_left(least(v_held.expires_at, v_held.session_expires_at), v_now), lock_us(v_now), lock_ms(v_held.granted_at),
        v_held.request_id, v_held.metadata, NULL::bigint,
        lock_more(v_held.lock_delay_ms, v_held.yield_by, v_held.yield_reason, v_held.yield_at);
    PERFORM lock_record(v_facts);
END $$;

-- Keys of a batch, or a page of keys in byte order.
CREATE OR REPLACE FUNCTION lock_inspect(p_within_ms bigint, p_expect_us bigint, p_lineage text, p_keys text[])
RETURNS SETOF lock_answer LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz;
BEGIN
    PERFORM lock_begin(p_within_ms, p_expect_us, p_lineage);
    v_now := lock_now();
    RETURN QUERY
        SELECT a.ord,
            CASE WHEN g.lock_key IS NULL THEN 'UNKNOWN'
                 WHEN g.session_id IS NOT NULL AND g.expires_at > v_now THEN 'HELD'
                 WHEN c.left_us > 0 THEN 'CLOSED' ELSE 'FREE' END,
            a.lock_key, g.session_id::text, s.owner, g.token, g.ttl_ms,
            CASE WHEN g.session_id IS NOT NULL AND g.expires_at > v_now
                 THEN lock_left(least(g.expires_at, s.expires_at), v_now) ELSE c.left_us END,
            lock_us(v_now), lock_ms(g.granted_at), g.request_id, g.metadata, NULL::bigint,
            lock_more(g.lock_delay_ms, g.yield_by, g.yield_reason, g.yield_at)
        FROM unnest(p_keys) WITH ORDINALITY AS a (lock_key, ord)
        LEFT JOIN lock_grant g ON g.lock_key = a.lock_key
        LEFT JOIN lock_session s ON s.session_id = g.session_id
        -- Of one that is over and not ended yet: the delay counts from when that is done, which may be now.
        CROSS JOIN LATERAL (SELECT CASE WHEN g.session_id IS NULL THEN lock_left(g.closed_until, v_now)
            ELSE g.lock_delay_ms * 1000 END AS left_us) c;
END $$;

-- A session's row, then one row per grant that it still holds.
CREATE OR REPLACE FUNCTION lock_session_rows(p_ids text[], p_outcome text, p_now timestamptz) RETURNS SETOF lock_answer
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
            NULL::bigint, lock_more(g.lock_delay_ms, g.yield_by, g.yield_reason, g.yield_at)
        FROM unnest(p_ids) WITH ORDINALITY AS a (id, ord)
        JOIN lock_session s ON s.session_id = a.id AND s.expires_at > p_now
        JOIN lock_grant g ON g.session_id = s.session_id AND g.expires_at > p_now
        ORDER BY a.ord, g.lock_key;
END $$;

CREATE OR REPLACE FUNCTION lock_close(p_within_ms bigint, p_expect_us bigint, p_lineage text, p_ids text[])
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
    UPDATE lock_grant SET session_id = NULL, expires_at = v_now, metadata = NULL, request_id = NULL, closed_until = NULL,
        yield_by = NULL, yield_reason = NULL, yield_at = NULL
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
-- the next sweep. Opens what has been closed for its whole delay, which is no fact.
CREATE OR REPLACE FUNCTION lock_expire(p_within_ms bigint, p_expect_us bigint, p_lineage text, p_limit bigint)
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
        UPDATE lock_grant g SET session_id = NULL, expires_at = v_now, metadata = NULL, request_id = NULL,
            -- From now on, however long these rows were waited for.
            closed_until = CASE WHEN g.lock_delay_ms > 0 THEN lock_now() + lock_span(g.lock_delay_ms) END,
            yield_by = NULL, yield_reason = NULL, yield_at = NULL
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
    UPDATE lock_grant SET closed_until = NULL WHERE lock_key IN (
        SELECT lock_key FROM lock_grant WHERE closed_until <= v_now ORDER BY closed_until LIMIT p_limit
        FOR UPDATE SKIP LOCKED);
    SELECT least((SELECT min(closed_until) FROM lock_grant WHERE closed_until IS NOT NULL),
                 (SELECT min(expires_at) FROM lock_session),
                 (SELECT min(expires_at) FROM lock_grant WHERE session_id IS NOT NULL)) INTO v_next;
    RETURN QUERY SELECT 1::bigint, CASE WHEN v_more THEN 'MORE' ELSE 'END' END, NULL::text, NULL::text, NULL::text,
        NULL::bigint, NULL::bigint, CASE WHEN v_next IS NOT NULL THEN lock_left(v_next, v_now) END, lock_us(v_now),
        NULL::bigint, NULL::text, NULL::text, NULL::bigint, NULL::text;
    PERFORM lock_record(v_facts);
END $$;

-- Forgets keys that have been free for so long, those excepted whose delay runs.
CREATE OR REPLACE FUNCTION lock_purge(p_retention_ms bigint, p_limit bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_gone bigint;
BEGIN
    DELETE FROM lock_grant WHERE session_id IS NULL AND lock_key IN (
        SELECT lock_key FROM lock_grant
        WHERE session_id IS NULL AND expires_at <= lock_now() - lock_span(p_retention_ms)
            AND (closed_until IS NULL OR closed_until <= lock_now())
        ORDER BY expires_at LIMIT p_limit FOR UPDATE SKIP LOCKED);
    GET DIAGNOSTICS v_gone = ROW_COUNT;
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
END $$;
