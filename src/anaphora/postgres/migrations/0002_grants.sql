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
