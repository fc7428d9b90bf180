-- Entries whose call has no durable row in the audit log yet: marked by the transaction that settles
-- them, where the node writes an audit log.
ALTER TABLE nodes ADD COLUMN audits boolean NOT NULL DEFAULT false;

CREATE TABLE unaudited (
    request_id text NOT NULL,
    hold text COLLATE "C" NOT NULL,
    node bigint NOT NULL,        -- the epoch that made the call
    writer bigint NOT NULL,      -- the epoch that writes its row: another one once the node is dead
    interrupted boolean NOT NULL DEFAULT false,   -- the call was under way when the node died
    PRIMARY KEY (request_id, hold)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

CREATE FUNCTION mark_unaudited() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO unaudited (request_id, hold, node, writer)
    SELECT added.request_id, added.id, added.node, added.node
    FROM added JOIN nodes ON nodes.id = added.node
    WHERE nodes.audits AND added.corrects = ''   -- a correction has a row of its own
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END
$$;

CREATE TRIGGER mark_unaudited AFTER INSERT ON entries
REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION mark_unaudited();
