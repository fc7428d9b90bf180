-- Limits of groups, and budgets: tokens that were narrowed from others. See daemon/store/budgets.py.
-- A call counts in further rows of `balances`, whose names have a prefix: its group, by day and
-- month, and the budgets above it, by day.

-- Those names, as a JSON array; empty if there are none.
ALTER TABLE holds ADD COLUMN accounts text NOT NULL DEFAULT '';
ALTER TABLE entries ADD COLUMN accounts text NOT NULL DEFAULT '';

-- Not in `tokens`: a node of an earlier version would take them for tokens of their app.
CREATE TABLE budgets (
    id text COLLATE "C" PRIMARY KEY,
    app text COLLATE "C" NOT NULL,
    digest bytea NOT NULL,
    created double precision NOT NULL,
    expires double precision NOT NULL,
    revoked double precision,
    parent text COLLATE "C" NOT NULL,
    nano_usd bigint NOT NULL,
    models text NOT NULL,   -- a JSON array
    label text NOT NULL,
    reserved int NOT NULL
);
CREATE INDEX budgets_by_expiry ON budgets (expires);
CREATE INDEX budgets_of_parent ON budgets (parent);
-- Not for new ones: a node reads those when they are used.
CREATE TRIGGER note_change AFTER UPDATE ON budgets
    FOR EACH STATEMENT EXECUTE FUNCTION note_change();

-- The accounts out of whose limits a budget is carved.
CREATE TABLE reservations (
    account text COLLATE "C" NOT NULL,
    expires double precision NOT NULL,
    budget text COLLATE "C" NOT NULL,
    nano_usd bigint NOT NULL,
    PRIMARY KEY (account, expires, budget)
);
CREATE INDEX reservations_of_budget ON reservations (budget);

CREATE FUNCTION end_reservations() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM reservations WHERE budget = NEW.id AND NEW.revoked IS NOT NULL;
    UPDATE reservations SET expires = NEW.expires
    WHERE budget = NEW.id AND expires <> NEW.expires;
    RETURN NULL;
END
$$;
CREATE TRIGGER end_reservations AFTER UPDATE ON budgets
    FOR EACH ROW EXECUTE FUNCTION end_reservations();

CREATE FUNCTION ledger_names(accounts text) RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(array_agg(value), '{}')
    FROM jsonb_array_elements_text(CASE accounts WHEN '' THEN '[]' ELSE accounts END::jsonb)
        AS given (value)
$$;

-- The rows of `balances` in which a call of a day counts, besides those of its app.
CREATE FUNCTION ledger_spans(accounts text, day text) RETURNS TABLE (account text, period text)
LANGUAGE sql IMMUTABLE AS $$
    SELECT given.name, span.period FROM unnest(ledger_names(accounts)) AS given (name)
    CROSS JOIN LATERAL (VALUES (day), (left(day, 7))) AS span (period)
    WHERE length(span.period) > 7 OR given.name NOT LIKE 'budget:%'
$$;

-- What is reserved out of an account, in a day, a month or (empty) its whole life. A call that is
-- held on another day does not count: if it costs less, the rest comes back to the reservation.
CREATE FUNCTION ledger_reserved(p_account text, p_period text, p_at double precision)
RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT coalesce(sum(greatest(0, row.nano_usd - (
        SELECT coalesce(sum(used.spent), 0)
            + coalesce(sum(used.held) FILTER (WHERE starts_with(used.period, p_period)), 0)
        FROM balances AS used WHERE used.app = 'budget:' || row.budget
    ))), 0)::bigint
    FROM reservations AS row WHERE row.account = p_account AND row.expires > p_at
$$;

-- The functions of 0001_ledger.sql with further accounts; nodes of all versions use them.

CREATE OR REPLACE FUNCTION ledger_correct(
    s_id text[], s_billed bigint[], s_kind text[], s_at double precision[], s_input bigint[],
    s_read bigint[], s_written bigint[], s_output bigint[], s_saved bigint[], s_others bigint[],
    s_labels text[]
) RETURNS void LANGUAGE sql AS $$
    WITH given AS MATERIALIZED (
        SELECT id, billed, kind, at, input, read, written, output, saved, others,
            labels::jsonb AS labels
        FROM unnest(
            s_id, s_billed, s_kind, s_at, s_input, s_read, s_written, s_output, s_saved, s_others,
            s_labels
        ) AS given (id, billed, kind, at, input, read, written, output, saved, others, labels)
    ), old AS MATERIALIZED (
        SELECT entries.*, given.at AS new_at, given.billed AS new_billed, given.kind AS new_kind,
            given.input AS new_input, given.read AS new_read, given.written AS new_written,
            given.output AS new_output, given.saved AS new_saved, given.others AS new_others,
            given.labels AS new_labels
        FROM given JOIN entries ON entries.id = given.id
        WHERE entries.kind = 'bound' AND given.kind <> 'bound' AND NOT EXISTS (
            SELECT FROM entries AS later WHERE later.id = entries.id || '.0001'
        )
    ), corrected AS (
        UPDATE entries SET settled_at = old.new_at, billed = old.new_billed, kind = old.new_kind,
            input = old.new_input, read = old.new_read, written = old.new_written,
            output = old.new_output, saved = old.new_saved, read_by_others = old.new_others,
            labels = old.new_labels
        FROM old WHERE entries.id = old.id
    ), change AS MATERIALIZED (
        SELECT day, app, provider, model, 1 AS sign, new_kind AS kind, new_billed AS billed,
            new_saved AS saved, new_input AS input, new_read AS read, new_written AS written,
            new_output AS output, new_labels AS labels, accounts
        FROM old
        UNION ALL
        SELECT day, app, provider, model, -1, kind, billed, saved, input, read, written, output,
            labels, accounts
        FROM old
    ), charged AS (
        UPDATE balances SET spent = balances.spent + total.spent
        FROM (
            SELECT app, period, sum(billed)::bigint AS spent FROM (
                SELECT app, span.period, sign * billed AS billed FROM change
                CROSS JOIN LATERAL (VALUES (change.day), (left(change.day, 7))) AS span (period)
                UNION ALL SELECT span.account, span.period, sign * billed FROM change
                CROSS JOIN LATERAL ledger_spans(change.accounts, change.day) AS span
                WHERE change.accounts <> ''
            ) AS charge GROUP BY app, period
        ) AS total
        WHERE balances.app = total.app AND balances.period = total.period
    ), labelled AS (
        INSERT INTO label_sums AS row (day, app, provider, model, label, calls, billed)
        SELECT day, app, provider, model, label.key, sum(sign), sum(sign * label.value::bigint)
        FROM change CROSS JOIN LATERAL jsonb_each_text(change.labels) AS label
        GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3, 4, 5
        ON CONFLICT (day, app, provider, model, label) DO UPDATE
        SET calls = row.calls + excluded.calls, billed = row.billed + excluded.billed
    )
    INSERT INTO sums AS row (
        day, app, provider, model, calls, billed, estimated, saved, input, read, written, output
    )
    SELECT day, app, provider, model, sum(CASE WHEN kind = 'free' THEN 0 ELSE sign END),
        sum(sign * billed),
        sum(CASE WHEN kind IN ('estimated', 'bound', 'disputed') THEN sign * billed ELSE 0 END),
        sum(sign * saved), sum(sign * input), sum(sign * read), sum(sign * written),
        sum(sign * output)
    FROM change GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
    ON CONFLICT (day, app, provider, model) DO UPDATE
    SET calls = row.calls + excluded.calls, billed = row.billed + excluded.billed,
        estimated = row.estimated + excluded.estimated, saved = row.saved + excluded.saved,
        input = row.input + excluded.input, read = row.read + excluded.read,
        written = row.written + excluded.written, output = row.output + excluded.output
$$;

-- As `ledger_write`. `h_accounts` as in `holds`; `h_levels`, if one of the holds has such accounts:
-- a JSON array of [account, name, "day", "month" or "", limit] for all limits of each hold, in the
-- order in which they are named in errors. Also returns a row for place 0: the highest share of a
-- limit that each hold uses.
CREATE FUNCTION ledger_write_2(
    p_node bigint, p_lane int,
    s_id text[], s_billed bigint[], s_kind text[], s_at double precision[], s_input bigint[],
    s_read bigint[], s_written bigint[], s_output bigint[], s_saved bigint[], s_others bigint[],
    s_labels text[],
    h_id text[], h_app text[], h_provider text[], h_model text[], h_request text[], h_day text[],
    h_at double precision[], h_bound bigint[], h_per_day bigint[], h_per_month bigint[],
    h_accounts text[], h_levels text[]
) RETURNS TABLE (
    place int, limit_name text, charged bigint, charged_day text, account text, shares float8[]
)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    before text;
    latest text;
    days text[];
    apps text[];
    periods text[];
    one record;
    last_app text;
    last_day text;
    day_taken bigint := 0;
    month_taken bigint := 0;
    taken boolean[] := array_fill(false, ARRAY[cardinality(h_id)]);
    settled text[];
    used float8[] := array_fill(0.0::float8, ARRAY[cardinality(h_id)]);
    has_further boolean := h_accounts <> array_fill(''::text, ARRAY[cardinality(h_id)]);
    level record;
    chain text[];
BEGIN
    IF p_node IS NOT NULL THEN
        PERFORM 1 FROM nodes WHERE id = p_node AND state = 'alive' AND lane = p_lane FOR SHARE;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'node % was taken for dead', p_node USING ERRCODE = 'AN001';
        END IF;
    END IF;

    IF cardinality(h_id) > 0 THEN
        SELECT latest_day INTO before FROM clock;
        latest := before;
        days := h_day;
        FOR number IN 1..cardinality(days) LOOP
            IF days[number] < latest THEN
                days[number] := latest;
            END IF;
            latest := days[number];
        END LOOP;
        IF latest > before THEN
            UPDATE clock SET latest_day = latest WHERE latest_day < latest;
        END IF;
    END IF;

    SELECT array_agg(app), array_agg(period) INTO apps, periods FROM (
        WITH charge AS MATERIALIZED (
            SELECT app, day, accounts FROM holds WHERE id = ANY (s_id)
            UNION ALL
            SELECT app, day, accounts FROM entries WHERE id = ANY (s_id) AND kind = 'bound'
            UNION ALL
            SELECT app, day, accounts
            FROM unnest(h_app, days, h_accounts) AS given (app, day, accounts)
        )
        SELECT charge.app, span.period FROM charge
        CROSS JOIN LATERAL (VALUES (charge.day), (left(charge.day, 7))) AS span (period)
        UNION
        SELECT span.account, span.period FROM charge
        CROSS JOIN LATERAL ledger_spans(charge.accounts, charge.day) AS span
        WHERE charge.accounts <> ''
        ORDER BY 1, 2
    ) AS wanted;
    IF apps IS NULL THEN
        RETURN;
    END IF;
    IF has_further THEN
        -- The total of a budget has rows of several days, of which a hold locks one.
        PERFORM 1 FROM budgets WHERE 'budget:' || id = ANY (apps) ORDER BY id FOR NO KEY UPDATE;
    END IF;
    -- New rows before any lock: who waits for another's new row must not hold what that one needs.
    IF EXISTS (
        SELECT FROM unnest(apps, periods) AS wanted (app, period)
        LEFT JOIN balances AS row ON row.app = wanted.app AND row.period = wanted.period
        WHERE row.app IS NULL
    ) THEN
        INSERT INTO balances (app, period) SELECT * FROM unnest(apps, periods)
        ON CONFLICT DO NOTHING;
    END IF;
    PERFORM 1 FROM unnest(apps, periods) AS wanted (app, period)
    JOIN balances AS row ON row.app = wanted.app AND row.period = wanted.period
    ORDER BY row.app, row.period FOR NO KEY UPDATE OF row;

    -- Settlements first: they make room for the holds.
    IF cardinality(s_id) > 0 THEN
        WITH given AS MATERIALIZED (
            SELECT * FROM unnest(
                s_id, s_billed, s_kind, s_at, s_input, s_read, s_written, s_output, s_saved,
                s_others, s_labels
            ) AS given (
                id, billed, kind, at, input, read, written, output, saved, others, labels
            )
        ), gone AS (
            DELETE FROM holds USING given WHERE holds.id = given.id
            RETURNING holds.id, holds.node, holds.app, holds.provider, holds.model,
                holds.request_id, holds.day, holds.at, holds.bound, holds.accounts,
                given.at AS settled_at, given.billed, given.kind, given.input, given.read,
                given.written, given.output, given.saved, given.others, given.labels::jsonb
        ), entered AS (
            INSERT INTO entries (
                id, node, app, provider, model, request_id, day, at, bound, accounts, settled_at,
                billed, kind, input, read, written, output, saved, read_by_others, labels
            )
            SELECT * FROM gone
        ), change AS (
            SELECT day, app, provider, model,
                count(*) FILTER (WHERE kind <> 'free') AS calls,
                sum(bound) AS bound, sum(billed) AS billed,
                sum(CASE WHEN kind IN ('estimated', 'bound', 'disputed') THEN billed ELSE 0 END) AS estimated,
                sum(saved) AS saved, sum(input) AS input, sum(read) AS read,
                sum(written) AS written, sum(output) AS output
            FROM gone GROUP BY day, app, provider, model ORDER BY 1, 2, 3, 4
        ), summed AS (
            INSERT INTO sums AS row (
                day, app, provider, model, calls, billed, estimated, saved, input, read, written,
                output
            )
            SELECT day, app, provider, model, calls, billed, estimated, saved, input, read, written,
                output
            FROM change
            ON CONFLICT (day, app, provider, model) DO UPDATE
            SET calls = row.calls + excluded.calls, billed = row.billed + excluded.billed,
                estimated = row.estimated + excluded.estimated, saved = row.saved + excluded.saved,
                input = row.input + excluded.input, read = row.read + excluded.read,
                written = row.written + excluded.written, output = row.output + excluded.output
        ), charged AS (
            UPDATE balances SET spent = balances.spent + total.billed,
                held = balances.held - total.bound
            FROM (
                SELECT app, period, sum(billed)::bigint AS billed, sum(bound)::bigint AS bound
                FROM (
                    SELECT app, span.period, billed, bound FROM change
                    CROSS JOIN LATERAL (VALUES (change.day), (left(change.day, 7)))
                        AS span (period)
                    UNION ALL SELECT span.account, span.period, billed, bound FROM gone
                    CROSS JOIN LATERAL ledger_spans(gone.accounts, gone.day) AS span
                    WHERE gone.accounts <> ''
                ) AS charge GROUP BY app, period
            ) AS total
            WHERE balances.app = total.app AND balances.period = total.period
        )
        SELECT coalesce(array_agg(id), '{}') INTO settled FROM gone;

        IF cardinality(settled) < cardinality(s_id) THEN
            PERFORM ledger_correct(
                s_id, s_billed, s_kind, s_at, s_input, s_read, s_written, s_output, s_saved,
                s_others, s_labels
            );
        END IF;
        IF cardinality(settled) > 0 AND s_labels <> array_fill('{}'::text, ARRAY[cardinality(s_id)]) THEN
            -- Those that this batch has entered: their settlement is the batch's own.
            INSERT INTO label_sums AS row (day, app, provider, model, label, calls, billed)
            SELECT entry.day, entry.app, entry.provider, entry.model, label.key, count(*),
                sum(label.value::bigint)
            FROM unnest(settled) AS given (id)
            JOIN entries AS entry ON entry.id = given.id
            CROSS JOIN LATERAL jsonb_each_text(entry.labels) AS label
            GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3, 4, 5
            ON CONFLICT (day, app, provider, model, label) DO UPDATE
            SET calls = row.calls + excluded.calls, billed = row.billed + excluded.billed;
        END IF;
    END IF;

    IF cardinality(h_id) > 0 AND NOT has_further THEN
        -- One after the other, as they arrived; a refused one takes nothing.
        FOR one IN
            SELECT given.n, given.app, given.day, given.bound, given.per_day, given.per_month,
                given.at, today.spent + today.held AS today, month.spent + month.held AS month,
                EXISTS (
                    SELECT FROM reservations AS row
                    WHERE row.account = given.app AND row.expires > given.at
                ) AS carved
            FROM unnest(h_app, days, h_at, h_bound, h_per_day, h_per_month) WITH ORDINALITY
                AS given (app, day, at, bound, per_day, per_month, n)
            JOIN balances AS today ON today.app = given.app AND today.period = given.day
            JOIN balances AS month ON month.app = given.app AND month.period = left(given.day, 7)
            ORDER BY given.app, given.n
        LOOP
            IF last_app IS DISTINCT FROM one.app OR left(last_day, 7) <> left(one.day, 7) THEN
                month_taken := 0;
            END IF;
            IF last_app IS DISTINCT FROM one.app OR last_day <> one.day THEN
                day_taken := 0;
            END IF;
            last_app := one.app;
            last_day := one.day;
            IF one.carved THEN
                one.today := one.today + ledger_reserved(one.app, one.day, one.at);
                one.month := one.month + ledger_reserved(one.app, left(one.day, 7), one.at);
            END IF;
            -- The month first: its limit opens later.
            IF one.month + month_taken + one.bound > one.per_month THEN
                place := one.n; limit_name := 'usd_per_month';
                charged := one.month + month_taken; charged_day := one.day;
                RETURN NEXT;
            ELSIF one.today + day_taken + one.bound > one.per_day THEN
                place := one.n; limit_name := 'usd_per_day';
                charged := one.today + day_taken; charged_day := one.day;
                RETURN NEXT;
            ELSE
                taken[one.n] := true;
                used[one.n] := greatest(
                    (one.month + month_taken + one.bound)::float8 / nullif(one.per_month, 0),
                    (one.today + day_taken + one.bound)::float8 / nullif(one.per_day, 0), 0
                );
                day_taken := day_taken + one.bound;
                month_taken := month_taken + one.bound;
            END IF;
        END LOOP;
        WITH new AS (
            INSERT INTO holds (id, node, app, provider, model, request_id, day, at, bound)
            SELECT id, p_node, app, provider, model, request, day, at, bound
            FROM unnest(h_id, h_app, h_provider, h_model, h_request, days, h_at, h_bound, taken)
                AS given (id, app, provider, model, request, day, at, bound, fits)
            WHERE fits
            RETURNING app, day, bound
        )
        UPDATE balances SET held = balances.held + total.bound
        FROM (
            SELECT app, span.period, sum(bound)::bigint AS bound FROM new
            CROSS JOIN LATERAL (VALUES (new.day), (left(new.day, 7))) AS span (period)
            GROUP BY app, span.period
        ) AS total
        WHERE balances.app = total.app AND balances.period = total.period;
    ELSIF cardinality(h_id) > 0 THEN
        -- Some count in further accounts: each is decided and written before the next one.
        FOR one IN
            SELECT * FROM unnest(
                h_id, h_app, h_provider, h_model, h_request, days, h_at, h_bound, h_per_day,
                h_per_month, h_accounts, h_levels
            ) WITH ORDINALITY AS given (
                id, app, provider, model, request, day, at, bound, per_day, per_month, accounts,
                levels, n
            ) ORDER BY n
        LOOP
            chain := ledger_names(one.accounts);
            limit_name := NULL;
            FOR level IN
                SELECT wanted.name, wanted.account, wanted.amount, one.bound + (
                    SELECT coalesce(sum(row.spent + row.held), 0) FROM balances AS row
                    WHERE row.app = wanted.account AND row.period >= wanted.period
                        AND row.period <= coalesce(nullif(wanted.period, ''), '9')
                ) + CASE WHEN EXISTS (
                    SELECT FROM reservations AS row
                    WHERE row.account = wanted.account AND row.expires > one.at
                        AND 'budget:' || row.budget = ANY (chain)
                ) THEN 0 ELSE ledger_reserved(wanted.account, wanted.period, one.at) END AS needed
                FROM (
                    SELECT value ->> 0 AS account, value ->> 1 AS name,
                        CASE value ->> 2 WHEN 'day' THEN one.day
                            WHEN 'month' THEN left(one.day, 7) ELSE '' END AS period,
                        (value ->> 3)::bigint AS amount, n
                    FROM jsonb_array_elements(one.levels::jsonb) WITH ORDINALITY AS given (value, n)
                ) AS wanted ORDER BY wanted.n
            LOOP
                IF level.needed > level.amount THEN
                    place := one.n; limit_name := level.name; charged := level.needed - one.bound;
                    charged_day := one.day; account := level.account;
                    RETURN NEXT;
                    EXIT;
                END IF;
                used[one.n] := greatest(
                    used[one.n], level.needed::float8 / nullif(level.amount, 0)
                );
            END LOOP;
            IF limit_name IS NULL THEN
                INSERT INTO holds (
                    id, node, app, provider, model, request_id, day, at, bound, accounts
                ) VALUES (
                    one.id, p_node, one.app, one.provider, one.model, one.request, one.day, one.at,
                    one.bound, one.accounts
                );
                UPDATE balances SET held = balances.held + one.bound
                FROM (
                    SELECT one.app AS account, one.day AS period
                    UNION ALL SELECT one.app, left(one.day, 7)
                    UNION ALL SELECT span.account, span.period
                    FROM ledger_spans(one.accounts, one.day) AS span
                ) AS span
                WHERE balances.app = span.account AND balances.period = span.period;
            END IF;
        END LOOP;
    END IF;
    IF cardinality(h_id) > 0 THEN
        place := 0; limit_name := NULL; charged := NULL; charged_day := NULL; account := NULL;
        shares := used;
        RETURN NEXT;
    END IF;
END
$$;

-- For nodes of earlier versions.
CREATE OR REPLACE FUNCTION ledger_write(
    p_node bigint, p_lane int,
    s_id text[], s_billed bigint[], s_kind text[], s_at double precision[], s_input bigint[],
    s_read bigint[], s_written bigint[], s_output bigint[], s_saved bigint[], s_others bigint[],
    s_labels text[],
    h_id text[], h_app text[], h_provider text[], h_model text[], h_request text[], h_day text[],
    h_at double precision[], h_bound bigint[], h_per_day bigint[], h_per_month bigint[]
) RETURNS TABLE (place int, limit_name text, charged bigint, charged_day text)
LANGUAGE sql AS $$
    SELECT place, limit_name, charged, charged_day FROM ledger_write_2(
        p_node, p_lane, s_id, s_billed, s_kind, s_at, s_input, s_read, s_written, s_output,
        s_saved, s_others, s_labels, h_id, h_app, h_provider, h_model, h_request, h_day, h_at,
        h_bound, h_per_day, h_per_month, array_fill(''::text, ARRAY[cardinality(h_id)]),
        array_fill(''::text, ARRAY[cardinality(h_id)])
    ) WHERE place > 0
$$;
