-- Entries of days before `pruned_until`, the first of a month, are deleted; their sums are not.
ALTER TABLE clock ADD COLUMN pruned_until text COLLATE "C" NOT NULL DEFAULT '';
