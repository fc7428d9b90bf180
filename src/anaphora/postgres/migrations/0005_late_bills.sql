-- What the bill of a response is computed from that is made in the background, as JSON.
ALTER TABLE handles ADD COLUMN bill text COLLATE "C" NOT NULL DEFAULT '';
