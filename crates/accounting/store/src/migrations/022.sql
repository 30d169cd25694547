-- What each of several nodes has of the settings that all must have in common: a digest, recorded by the run `epoch`, and since when, by the
-- clock of the database. A row of an earlier run says nothing of a later one, which may be of a release that does not record it.
CREATE TABLE node_settings (node_id $INT PRIMARY KEY, epoch $INT NOT NULL, digest TEXT NOT NULL, since $INT NOT NULL) $KEYED;
