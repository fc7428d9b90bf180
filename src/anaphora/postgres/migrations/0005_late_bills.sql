-- For the removal of old items. Before the column: until the commit, no row is read after that.
CREATE INDEX handles_by_age ON handles (kind, created);

-- What the bill of a response is computed from that is made in the background, as JSON.
ALTER TABLE handles ADD COLUMN bill text COLLATE "C" NOT NULL DEFAULT '';
