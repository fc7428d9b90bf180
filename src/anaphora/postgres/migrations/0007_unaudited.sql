-- Entries whose call has no durable row in the audit log yet: marked by the transaction that settles
-- them, where the node writes an audit log.
-- The epoch of the log's writer; 0 without a log.
ALTER TABLE nodes ADD COLUMN audit_epoch bigint NOT NULL DEFAULT 0;

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
