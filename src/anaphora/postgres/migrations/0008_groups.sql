-- The group that each app had, from when on; an app without a row has none.
CREATE TABLE app_groups (
    app text COLLATE "C" NOT NULL,
    since double precision NOT NULL,
    day text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    PRIMARY KEY (app, since)
);
