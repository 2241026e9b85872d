-- When the store is in doubt about its tokens: never because others mint or raise the floor meanwhile.
--
-- One function with the arguments and answers of before.

-- Why nothing can be minted, a new doubt included; null where all is well.
--
-- Whatever is held against the last token minted is read before it, and so is not above it: others may mint, record and
-- raise the floor in between. They may do so for the keys asked for too, since a key without a row is locked by nobody.
CREATE OR REPLACE FUNCTION lock_mint_doubt(p_keys text[], OUT o_doubt text, OUT o_facts lock_fact[]) LANGUAGE plpgsql AS $$
DECLARE
    v_last bigint;
    v_floor bigint;
    v_above bigint;
    v_granted bigint;
BEGIN
    o_facts := '{}';
    SELECT max(token) INTO v_granted FROM lock_event WHERE kind = 'GRANTED';
    SELECT max(token) INTO v_above FROM lock_grant WHERE lock_key = ANY (p_keys);
    SELECT CASE WHEN state <> 'OK' THEN coalesce(detail, 'the store is in doubt') END, token_floor
        INTO o_doubt, v_floor FROM lock_lineage WHERE id = 1;
    v_last := lock_last();
    IF o_doubt IS NULL AND greatest(v_floor, v_above, v_granted) > v_last THEN
        -- Whoever raises the floor alters the sequence, and this transaction, which has read it before, may go on reading
        -- what it was. It learns of that when it takes a lock that it has not yet.
        PERFORM 1 FROM lock_event_retention;
        v_last := lock_last();
        o_doubt := CASE
            WHEN v_floor > v_last THEN format('the next token is %s, the floor is %s', v_last + 1, v_floor)
            WHEN v_above > v_last THEN format('the next token is %s, a key''s own last one is %s', v_last + 1, v_above)
            WHEN v_granted > v_last THEN format('the next token is %s, the facts know of %s', v_last + 1, v_granted)
        END;
        IF o_doubt IS NOT NULL THEN
            o_facts := lock_doubt(o_doubt, NULL, NULL, NULL);
        END IF;
    END IF;
END $$;
