-- An entry of the kind 'correction' names the entry that it corrects: `billed` is what it adds to
-- that one's amount, and `confirmed` the amount that was estimated until then. Its id is that of the
-- corrected entry, with `.0001`, `.0002` and so on.
ALTER TABLE entries
    ADD COLUMN corrects text COLLATE "C" NOT NULL DEFAULT '',
    ADD COLUMN confirmed bigint NOT NULL DEFAULT 0,
    ADD COLUMN reason text NOT NULL DEFAULT '';
CREATE INDEX corrections ON entries (app, id) WHERE corrects <> '';
ALTER TABLE sums ADD COLUMN corrected bigint NOT NULL DEFAULT 0;

-- Two conditions in the functions of the ledger, for nodes of all versions: an amount that is
-- disputed is one that no bill confirms, and an entry that was corrected takes no late bill.
DO $change$
DECLARE
    function regproc;
    before text;
    after text;
BEGIN
    FOREACH function IN ARRAY ARRAY['ledger_write', 'ledger_correct']::regproc[] LOOP
        before := pg_get_functiondef(function);
        after := replace(
            before, $$kind IN ('estimated', 'bound')$$, $$kind IN ('estimated', 'bound', 'disputed')$$
        );
        IF after = before THEN
            RAISE EXCEPTION 'the function % is another one than 0001_ledger.sql made', function;
        END IF;
        IF function = 'ledger_correct'::regproc THEN
            before := after;
            after := replace(
                before, $$WHERE entries.kind = 'bound' AND given.kind <> 'bound'$$,
                $$WHERE entries.kind = 'bound' AND given.kind <> 'bound' AND NOT EXISTS (
            SELECT FROM entries AS later WHERE later.id = entries.id || '.0001'
        )$$
            );
            IF after = before THEN
                RAISE EXCEPTION 'the function % is another one than 0001_ledger.sql made', function;
            END IF;
        END IF;
        EXECUTE after;
    END LOOP;
END
$change$;
