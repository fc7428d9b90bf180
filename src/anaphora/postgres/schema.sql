-- The store of several nodes: ledger, tokens and handles as in SQLite's store, the nodes, and what
-- they must agree on. Amounts are nano-dollars; `at`, `created`, `expires` and `revoked` are seconds
-- since 1970.

CREATE TABLE schema_version (version int NOT NULL);

-- A row for each start of a node: its id is the fencing token of all that this node writes.
CREATE TABLE nodes (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL,
    version text NOT NULL,
    started timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- alive; ended: it stopped; dead: it was silent, and other nodes took over its holds.
    state text NOT NULL DEFAULT 'alive' CHECK (state IN ('alive', 'ended', 'dead')),
    ended timestamptz,
    -- Counts the connections that took holds: a statement of an earlier one comes too late.
    lane int NOT NULL DEFAULT 0,
    -- Of the writer of its audit log; 0 without a log.
    audit_epoch bigint NOT NULL DEFAULT 0
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
    latest_day text COLLATE "C" NOT NULL,
    -- Entries of earlier days, the first of a month, are deleted; their sums are not.
    pruned_until text COLLATE "C" NOT NULL DEFAULT ''
);
INSERT INTO clock (latest_day) VALUES ('');

-- What limits are checked against, by app and by day or month; also of groups and of budgets, whose
-- names have a prefix (daemon/store/budgets.py). Changed by every call: room in each page, and no
-- index on what changes.
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
    bound bigint NOT NULL,
    -- The further names in `balances` that it counts in, as a JSON array; empty if there are none.
    accounts text NOT NULL DEFAULT ''
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
    labels jsonb NOT NULL,
    accounts text NOT NULL DEFAULT '',
    -- Of an entry of the kind 'correction': the entry that it corrects, whose id it has with `.0001`,
    -- `.0002` and so on. `billed` is what it adds, `confirmed` what was estimated until then.
    corrects text COLLATE "C" NOT NULL DEFAULT '',
    confirmed bigint NOT NULL DEFAULT 0,
    reason text NOT NULL DEFAULT ''
);
CREATE INDEX corrections ON entries (app, id) WHERE corrects <> '';

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
    corrected bigint NOT NULL DEFAULT 0,
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
CREATE INDEX handles_by_age ON handles (kind, created);

-- Narrowed tokens.
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
    label text NOT NULL
);
CREATE INDEX budgets_by_expiry ON budgets (expires);
CREATE INDEX budgets_of_parent ON budgets (parent);

-- The first row of each node's audit log that has a MAC, and the id of the key.
CREATE TABLE audit_logs (
    name text COLLATE "C" PRIMARY KEY,
    signed_since bigint NOT NULL,
    key_id text NOT NULL
);

-- Entries whose call has no durable row in the audit log yet: marked by the transaction that settles
-- them, if the node writes an audit log.
CREATE TABLE unaudited (
    request_id text NOT NULL,
    hold text COLLATE "C" NOT NULL,
    node bigint NOT NULL,
    epoch bigint NOT NULL,
    interrupted boolean NOT NULL DEFAULT false,   -- the call was under way when the node died
    PRIMARY KEY (request_id, hold)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

CREATE FUNCTION mark_unaudited() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO unaudited (request_id, hold, node, epoch)
    SELECT added.request_id, added.id, added.node, nodes.audit_epoch
    FROM added JOIN nodes ON nodes.id = added.node
    WHERE nodes.audit_epoch > 0 AND added.corrects = ''   -- a correction has a row of its own
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END
$$;

CREATE TRIGGER mark_unaudited AFTER INSERT ON entries
REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION mark_unaudited();



-- Grants as generations, nodes that are drained, and what all nodes must agree on.
CREATE TABLE grant_generations (
    number bigint PRIMARY KEY,
    -- Of the text, in hex.
    digest text NOT NULL,
    -- As in extensions.yaml.
    text text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    applied_by text NOT NULL
);

-- By the node's name: it stays drained when it is started again.
CREATE TABLE drains (
    node text COLLATE "C" PRIMARY KEY,
    since timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE settings (
    name text COLLATE "C" PRIMARY KEY,
    value text NOT NULL
);

-- A number for each kind of change. A node that missed a notification sees it in the number.
CREATE TABLE changes (
    name text COLLATE "C" PRIMARY KEY,
    version bigint NOT NULL
);

CREATE FUNCTION note_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO anaphora.changes AS before (name, version) VALUES (TG_TABLE_NAME, 1)
        ON CONFLICT (name) DO UPDATE SET version = before.version + 1;
    PERFORM pg_notify('anaphora_changes', TG_TABLE_NAME);
    RETURN NULL;
END
$$;

CREATE TRIGGER note_change AFTER INSERT OR UPDATE OR DELETE ON tokens
    FOR EACH STATEMENT EXECUTE FUNCTION note_change();
CREATE TRIGGER note_change AFTER INSERT OR UPDATE OR DELETE ON grant_generations
    FOR EACH STATEMENT EXECUTE FUNCTION note_change();
CREATE TRIGGER note_change AFTER INSERT OR UPDATE OR DELETE ON drains
    FOR EACH STATEMENT EXECUTE FUNCTION note_change();
-- Not for new ones: a node reads those when they are used.
CREATE TRIGGER note_change AFTER UPDATE ON budgets
    FOR EACH STATEMENT EXECUTE FUNCTION note_change();

-- The further names of `accounts`.
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

-- Late settlements: an entry at the bound becomes the real amount, unless it was corrected; any other
-- is final.
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

-- A batch of settlements and holds, in one round trip: the locks are held for as short as can be.
--
-- Locks are taken in one order by all: the node, the clock, budgets, balances by app and period.
-- Whoever changes holds, entries or sums of an app and a day has locked their balances.
--
-- `h_accounts` as in `holds`; `h_levels`, if one of the holds has such accounts: a JSON array of
-- [account, name, "day", "month" or "", limit] for all limits of each hold, in the order in which they
-- are named in errors.
--
-- Raises AN001 if the node is not alive, or its connection is not the latest one. Returns the holds
-- that were refused: their place in the batch (from 1), the limit, what is charged, the day.
CREATE FUNCTION ledger_write(
    p_node bigint, p_lane int,
    s_id text[], s_billed bigint[], s_kind text[], s_at double precision[], s_input bigint[],
    s_read bigint[], s_written bigint[], s_output bigint[], s_saved bigint[], s_others bigint[],
    s_labels text[],
    h_id text[], h_app text[], h_provider text[], h_model text[], h_request text[], h_day text[],
    h_at double precision[], h_bound bigint[], h_per_day bigint[], h_per_month bigint[],
    h_accounts text[], h_levels text[]
) RETURNS TABLE (
    place int, limit_name text, charged bigint, charged_day text, account text
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
    has_further boolean := h_accounts <> array_fill(''::text, ARRAY[cardinality(h_id)]);
    level record;
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
            limit_name := NULL;
            FOR level IN
                SELECT wanted.name, wanted.account, wanted.amount, one.bound + (
                    SELECT coalesce(sum(row.spent + row.held), 0) FROM balances AS row
                    WHERE row.app = wanted.account AND row.period >= wanted.period
                        AND row.period <= coalesce(nullif(wanted.period, ''), '9')
                ) AS needed
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
END
$$;
