-- The ledger, tokens and handles, as in SQLite's store, and the nodes that use them.
-- Amounts are nano-dollars; `at`, `created`, `expires` and `revoked` are seconds since 1970.

-- A row for each start of a node: its id is the fencing token of all that this node writes.
CREATE TABLE nodes (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL,
    version text NOT NULL,
    address text NOT NULL DEFAULT '',
    started timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- alive; ended: it stopped; dead: it was silent, and other nodes took over its holds.
    state text NOT NULL DEFAULT 'alive' CHECK (state IN ('alive', 'ended', 'dead')),
    ended timestamptz,
    -- Counts the connections that took holds: a statement of an earlier one comes too late.
    lane int NOT NULL DEFAULT 0
);
CREATE INDEX nodes_alive ON nodes (name) WHERE state = 'alive';

CREATE TABLE beats (
    node bigint PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    report jsonb NOT NULL DEFAULT '{}'
) WITH (fillfactor = 50);

-- The latest day that any hold had: a clock that jumps back reopens no day.
CREATE TABLE clock (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    latest_day text COLLATE "C" NOT NULL
);
INSERT INTO clock (latest_day) VALUES ('');

-- What limits are checked against, by app and by day or month. Changed by every call: room in each
-- page, and no index on what changes.
CREATE TABLE balances (
    app text COLLATE "C" NOT NULL,
    period text COLLATE "C" NOT NULL,
    spent bigint NOT NULL DEFAULT 0,
    held bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (app, period)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

CREATE TABLE holds (
    id text COLLATE "C" PRIMARY KEY,
    node bigint NOT NULL,
    app text COLLATE "C" NOT NULL,
    provider text COLLATE "C" NOT NULL,
    model text COLLATE "C" NOT NULL,
    request_id text NOT NULL,
    day text COLLATE "C" NOT NULL,
    at double precision NOT NULL,
    bound bigint NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

CREATE TABLE entries (
    id text COLLATE "C" PRIMARY KEY,
    node bigint NOT NULL,
    app text COLLATE "C" NOT NULL,
    provider text COLLATE "C" NOT NULL,
    model text COLLATE "C" NOT NULL,
    request_id text NOT NULL,
    day text COLLATE "C" NOT NULL,
    at double precision NOT NULL,
    bound bigint NOT NULL,
    settled_at double precision NOT NULL,
    billed bigint NOT NULL,
    kind text NOT NULL,
    input bigint NOT NULL,
    read bigint NOT NULL,
    written bigint NOT NULL,
    output bigint NOT NULL,
    saved bigint NOT NULL,
    read_by_others bigint NOT NULL,
    labels jsonb NOT NULL
);

CREATE TABLE sums (
    day text COLLATE "C" NOT NULL,
    app text COLLATE "C" NOT NULL,
    provider text COLLATE "C" NOT NULL,
    model text COLLATE "C" NOT NULL,
    calls bigint NOT NULL,
    billed bigint NOT NULL,
    estimated bigint NOT NULL,
    saved bigint NOT NULL,
    input bigint NOT NULL,
    read bigint NOT NULL,
    written bigint NOT NULL,
    output bigint NOT NULL,
    PRIMARY KEY (day, app, provider, model)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

CREATE TABLE label_sums (
    day text COLLATE "C" NOT NULL,
    app text COLLATE "C" NOT NULL,
    provider text COLLATE "C" NOT NULL,
    model text COLLATE "C" NOT NULL,
    label text COLLATE "C" NOT NULL,
    calls bigint NOT NULL,
    billed bigint NOT NULL,
    PRIMARY KEY (day, app, provider, model, label)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

CREATE TABLE tokens (
    id text COLLATE "C" PRIMARY KEY,
    app text COLLATE "C" NOT NULL,
    digest bytea NOT NULL,
    created double precision NOT NULL,
    expires double precision,
    revoked double precision
);

CREATE TABLE handles (
    kind text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    provider text COLLATE "C" NOT NULL,
    app text COLLATE "C" NOT NULL,
    created double precision NOT NULL,
    tokens bigint,
    PRIMARY KEY (kind, id, provider)
);
CREATE INDEX handles_of_app ON handles (app, kind);

-- Late settlements: an entry at the bound becomes the real amount, any other is final.
CREATE FUNCTION ledger_correct(
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
        WHERE entries.kind = 'bound' AND given.kind <> 'bound'
    ), corrected AS (
        UPDATE entries SET settled_at = old.new_at, billed = old.new_billed, kind = old.new_kind,
            input = old.new_input, read = old.new_read, written = old.new_written,
            output = old.new_output, saved = old.new_saved, read_by_others = old.new_others,
            labels = old.new_labels
        FROM old WHERE entries.id = old.id
    ), change AS MATERIALIZED (
        SELECT day, app, provider, model, 1 AS sign, new_kind AS kind, new_billed AS billed,
            new_saved AS saved, new_input AS input, new_read AS read, new_written AS written,
            new_output AS output, new_labels AS labels
        FROM old
        UNION ALL
        SELECT day, app, provider, model, -1, kind, billed, saved, input, read, written, output,
            labels
        FROM old
    ), charged AS (
        UPDATE balances SET spent = balances.spent + total.spent
        FROM (
            SELECT app, span.period, sum(sign * billed)::bigint AS spent FROM change
            CROSS JOIN LATERAL (VALUES (change.day), (left(change.day, 7))) AS span (period)
            GROUP BY app, span.period
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
        sum(CASE WHEN kind IN ('estimated', 'bound') THEN sign * billed ELSE 0 END),
        sum(sign * saved), sum(sign * input), sum(sign * read), sum(sign * written),
        sum(sign * output)
    FROM change GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
    ON CONFLICT (day, app, provider, model) DO UPDATE
    SET calls = row.calls + excluded.calls, billed = row.billed + excluded.billed,
        estimated = row.estimated + excluded.estimated, saved = row.saved + excluded.saved,
        input = row.input + excluded.input, read = row.read + excluded.read,
        written = row.written + excluded.written, output = row.output + excluded.output
$$;

-- A batch of settlements and holds, in one round trip: the locks are held for as short as can be.
-- A later version of this function gets another name: nodes of two versions run side by side.
--
-- Locks are taken in one order by all: the node, the clock, balances by app and period. Whoever
-- changes holds, entries or sums of an app and a day has locked their balances.
--
-- Raises AN001 where the node is not alive, or its connection is not the latest one. Returns the
-- holds that were refused: their place in the batch (from 1), the limit, what is charged, the day.
CREATE FUNCTION ledger_write(
    p_node bigint, p_lane int,
    s_id text[], s_billed bigint[], s_kind text[], s_at double precision[], s_input bigint[],
    s_read bigint[], s_written bigint[], s_output bigint[], s_saved bigint[], s_others bigint[],
    s_labels text[],
    h_id text[], h_app text[], h_provider text[], h_model text[], h_request text[], h_day text[],
    h_at double precision[], h_bound bigint[], h_per_day bigint[], h_per_month bigint[]
) RETURNS TABLE (place int, limit_name text, charged bigint, charged_day text)
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
        SELECT DISTINCT charge.app, span.period FROM (
            SELECT app, day FROM holds WHERE id = ANY (s_id)
            UNION ALL SELECT app, day FROM entries WHERE id = ANY (s_id) AND kind = 'bound'
            UNION ALL SELECT app, day FROM unnest(h_app, days) AS given (app, day)
        ) AS charge
        CROSS JOIN LATERAL (VALUES (charge.day), (left(charge.day, 7))) AS span (period)
        ORDER BY 1, 2
    ) AS wanted;
    IF apps IS NULL THEN
        RETURN;
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
                holds.request_id, holds.day, holds.at, holds.bound, given.at AS settled_at,
                given.billed, given.kind, given.input, given.read, given.written, given.output,
                given.saved, given.others, given.labels::jsonb
        ), entered AS (
            INSERT INTO entries SELECT * FROM gone
        ), change AS (
            SELECT day, app, provider, model,
                count(*) FILTER (WHERE kind <> 'free') AS calls,
                sum(bound) AS bound, sum(billed) AS billed,
                sum(CASE WHEN kind IN ('estimated', 'bound') THEN billed ELSE 0 END) AS estimated,
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
                SELECT app, span.period, sum(billed)::bigint AS billed, sum(bound)::bigint AS bound
                FROM change
                CROSS JOIN LATERAL (VALUES (change.day), (left(change.day, 7))) AS span (period)
                GROUP BY app, span.period
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

    IF cardinality(h_id) > 0 THEN
        -- One after the other, as they arrived; a refused one takes nothing.
        FOR one IN
            SELECT given.n, given.app, given.day, given.bound, given.per_day, given.per_month,
                today.spent + today.held AS today, month.spent + month.held AS month
            FROM unnest(h_app, days, h_bound, h_per_day, h_per_month) WITH ORDINALITY
                AS given (app, day, bound, per_day, per_month, n)
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
    END IF;
END
$$;
