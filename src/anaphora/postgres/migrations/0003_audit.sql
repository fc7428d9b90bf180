-- The first row of each node's audit log that has a MAC, and the id of the key.
CREATE TABLE audit_logs (
    name text COLLATE "C" PRIMARY KEY,
    signed_since bigint NOT NULL,
    key_id text NOT NULL
);

-- Logins of the dashboard, by a keyed hash of their cookie.
CREATE TABLE ui_sessions (
    digest bytea PRIMARY KEY,
    token text NOT NULL,
    app text NOT NULL,
    opened double precision NOT NULL,
    used double precision NOT NULL
);
CREATE INDEX ui_sessions_token ON ui_sessions (token);

-- Forms that may be sent once.
CREATE TABLE ui_forms (
    session bytea NOT NULL REFERENCES ui_sessions (digest) ON DELETE CASCADE,
    number text NOT NULL,
    action text[] NOT NULL,
    made timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (session, number)
);
