-- The fence of dlock, for any table of a PostgreSQL database (13 and later).
--
-- Run it as the owner of the schema that stands first in search_path: a migration of your own. It makes
--   dlock_fence_mark            the highest token that wrote under each key
--   dlock_fence(key, token)     to be called first in a transaction: takes the key's lock, refuses a stale token
--   dlock_fence_table(table, …) puts the fence on a table: a write without a token, or with a stale one, is refused
--   dlock_unfence_table(table)  takes it off again
--
-- Errors: LK001 fenced out (stale), LK002 fenced out (the token is spent), LK003 no token, LK004 malformed token or key,
-- LK005 a fenced row would change its key, LK006 TRUNCATE of a fenced table. DETAIL is a JSON object with the code, the
-- reason, the key, presented_token and highest_token.
--
-- The functions run with their owner's rights, so that who writes the table can raise a mark and never lower one.

-- Each function is pinned to the schema it is made in.
SELECT set_config('dlock.search_path_before', current_setting('search_path'), false);
SELECT set_config('search_path', quote_ident(current_schema()) || ', pg_temp', false);

CREATE TABLE dlock_fence_mark (
    key text PRIMARY KEY CHECK (octet_length(key) BETWEEN 1 AND 1024),
    token bigint NOT NULL CHECK (token BETWEEN 1 AND 9007199254740991),
    -- The transaction that raised the mark: what one effect of a token is.
    raised_in xid8 NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
REVOKE ALL ON dlock_fence_mark FROM PUBLIC;

-- A mark never goes back, whoever writes it.
CREATE FUNCTION dlock_fence_mark_rises() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF TG_OP <> 'UPDATE' OR NEW.key <> OLD.key OR NEW.token < OLD.token THEN
        RAISE EXCEPTION 'a fence''s mark is neither removed nor lowered' USING ERRCODE = 'LK005';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER dlock_fence_mark_rises BEFORE UPDATE OR DELETE ON dlock_fence_mark
    FOR EACH ROW EXECUTE FUNCTION dlock_fence_mark_rises();
CREATE TRIGGER dlock_fence_mark_stays BEFORE TRUNCATE ON dlock_fence_mark
    FOR EACH STATEMENT EXECUTE FUNCTION dlock_fence_mark_rises();

-- Judges a token and raises the mark. The first statement takes the mark's row lock, whether the mark rises or not, and
-- waits for every transaction that wrote under the key before; what is read afterwards is a later statement, so that it
-- sees what those have committed (READ COMMITTED). Under REPEATABLE READ a transaction that had to wait fails with 40001.
CREATE FUNCTION dlock_fence_judge(fence_key text, presented bigint, once boolean) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    mark dlock_fence_mark%ROWTYPE;
    reason text;
BEGIN
    IF fence_key IS NULL OR octet_length(fence_key) NOT BETWEEN 1 AND 1024 THEN
        RAISE EXCEPTION 'a fence''s key must be 1 to 1024 bytes' USING ERRCODE = 'LK004',
            DETAIL = json_build_object('code', 'FENCING_TOKEN_INVALID', 'reason', 'key', 'key', fence_key)::text;
    END IF;
    IF presented IS NULL THEN
        RAISE EXCEPTION 'a fencing token is required to write under %', fence_key USING ERRCODE = 'LK003',
            DETAIL = json_build_object('code', 'FENCING_TOKEN_REQUIRED', 'key', fence_key)::text,
            HINT = 'call dlock_fence(key, token), or set_config(''dlock.token'', token, true), in this transaction';
    END IF;
    IF presented NOT BETWEEN 1 AND 9007199254740991 THEN
        RAISE EXCEPTION 'a fencing token must be between 1 and 2^53 - 1' USING ERRCODE = 'LK004',
            DETAIL = json_build_object('code', 'FENCING_TOKEN_INVALID', 'reason', 'token', 'key', fence_key)::text;
    END IF;

    INSERT INTO dlock_fence_mark AS m (key, token, raised_in) VALUES (fence_key, presented, pg_current_xact_id())
        ON CONFLICT (key) DO UPDATE
            SET token = excluded.token, raised_in = excluded.raised_in, updated_at = clock_timestamp()
            WHERE m.token < excluded.token;

    SELECT * INTO STRICT mark FROM dlock_fence_mark AS m WHERE m.key = fence_key;
    IF mark.token > presented THEN
        reason := 'stale';
    ELSIF once AND mark.raised_in <> pg_current_xact_id() THEN
        reason := 'token_spent';
    ELSE
        RETURN;
    END IF;
    RAISE EXCEPTION 'fenced out of %: presented token %, highest token %', fence_key, presented, mark.token
        USING ERRCODE = CASE reason WHEN 'stale' THEN 'LK001' ELSE 'LK002' END,
        DETAIL = json_build_object('code', 'FENCED_OUT', 'reason', reason, 'key', fence_key,
                                   'presented_token', presented, 'highest_token', mark.token)::text;
END $$;

-- To be called first in a transaction, before anything is read that the write depends on. The token counts for this key
-- until the transaction ends. With once = true a token may have one transaction.
CREATE FUNCTION dlock_fence(key text, token bigint, once boolean DEFAULT false) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM dlock_fence_judge(key, token, once);
    PERFORM set_config('dlock.tokens',
        (coalesce(nullif(current_setting('dlock.tokens', true), ''), '{}')::jsonb || jsonb_build_object(key, token))::text,
        true);
    RETURN token;
END $$;

-- The token of this transaction for a key: the one that dlock_fence was given for it, else dlock.token.
CREATE FUNCTION dlock_fence_token(fence_key text) RETURNS bigint LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    text_form text := nullif(current_setting('dlock.tokens', true), '')::jsonb ->> fence_key;
BEGIN
    text_form := coalesce(text_form, nullif(current_setting('dlock.token', true), ''));
    -- Digits only, no sign, no leading zero, as in the header X-Fencing-Token.
    IF text_form !~ '^[1-9][0-9]{0,15}$' THEN
        RAISE EXCEPTION 'dlock.token must be a decimal integer without sign or leading zero' USING ERRCODE = 'LK004',
            DETAIL = json_build_object('code', 'FENCING_TOKEN_INVALID', 'reason', 'token', 'key', fence_key)::text;
    END IF;
    RETURN text_form::bigint;
END $$;

-- The trigger. Arguments: the key's prefix, the column whose value follows it (empty: the prefix alone is the key), and
-- once or many.
CREATE FUNCTION dlock_fence_row() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    old_key text := TG_ARGV[0];
    new_key text := TG_ARGV[0];
    fence_key text;
BEGIN
    IF TG_OP = 'TRUNCATE' THEN
        RAISE EXCEPTION 'TRUNCATE of a fenced table' USING ERRCODE = 'LK006',
            DETAIL = json_build_object('code', 'FENCING_TOKEN_REQUIRED', 'reason', 'truncate')::text;
    END IF;
    IF TG_ARGV[1] <> '' THEN
        -- NULL where the column is; judged below.
        old_key := CASE WHEN TG_OP IN ('UPDATE', 'DELETE') THEN TG_ARGV[0] || (to_jsonb(OLD) ->> TG_ARGV[1]) END;
        new_key := CASE WHEN TG_OP IN ('INSERT', 'UPDATE') THEN TG_ARGV[0] || (to_jsonb(NEW) ->> TG_ARGV[1]) END;
    END IF;
    IF TG_OP = 'UPDATE' AND old_key IS DISTINCT FROM new_key THEN
        RAISE EXCEPTION 'a fenced row does not change its key' USING ERRCODE = 'LK005',
            DETAIL = json_build_object('code', 'FENCED_OUT', 'reason', 'key_changed', 'key', old_key)::text;
    END IF;
    fence_key := CASE TG_OP WHEN 'DELETE' THEN old_key ELSE new_key END;
    PERFORM dlock_fence_judge(fence_key, dlock_fence_token(fence_key), TG_ARGV[2] = 'once');
    RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
END $$;

-- Fences a table. Without key_column the whole table is one key. The trigger's name sorts behind others, so that it sees
-- the row as they left it.
CREATE FUNCTION dlock_fence_table(fenced regclass, key_prefix text, key_column name DEFAULT NULL, once boolean DEFAULT false)
    RETURNS void LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF key_column IS NOT NULL AND NOT EXISTS (
        SELECT FROM pg_attribute WHERE attrelid = fenced AND attname = key_column AND attnum > 0 AND NOT attisdropped
            AND attgenerated = '') THEN
        RAISE EXCEPTION '% has no column % that could be a key', fenced, key_column USING ERRCODE = 'LK004';
    END IF;
    EXECUTE format('CREATE TRIGGER zz_dlock_fence BEFORE INSERT OR UPDATE OR DELETE ON %s FOR EACH ROW
                    EXECUTE FUNCTION dlock_fence_row(%L, %L, %L)',
                   fenced, key_prefix, coalesce(key_column, ''), CASE WHEN once THEN 'once' ELSE 'many' END);
    EXECUTE format('CREATE TRIGGER zz_dlock_fence_truncate BEFORE TRUNCATE ON %s FOR EACH STATEMENT
                    EXECUTE FUNCTION dlock_fence_row('''', '''', '''')', fenced);
END $$;

CREATE FUNCTION dlock_unfence_table(fenced regclass) RETURNS void LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    EXECUTE format('DROP TRIGGER IF EXISTS zz_dlock_fence ON %s', fenced);
    EXECUTE format('DROP TRIGGER IF EXISTS zz_dlock_fence_truncate ON %s', fenced);
END $$;

-- The role that writes the fenced tables needs one right: GRANT EXECUTE ON FUNCTION dlock_fence(text, bigint, boolean) TO …
REVOKE ALL ON FUNCTION dlock_fence_mark_rises(), dlock_fence_judge(text, bigint, boolean),
    dlock_fence(text, bigint, boolean), dlock_fence_token(text), dlock_fence_row(),
    dlock_fence_table(regclass, text, name, boolean), dlock_unfence_table(regclass) FROM PUBLIC;

SELECT set_config('search_path', current_setting('dlock.search_path_before'), false);
