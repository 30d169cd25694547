-- The networks and browsers that have signed in to an address, each as a digest of both: their sends and tries are counted by themselves, which
-- requests of others do not use up.
CREATE TABLE login_networks (key $BIN PRIMARY KEY, at $INT NOT NULL) $KEYED;
CREATE INDEX login_networks_at ON login_networks (at);
