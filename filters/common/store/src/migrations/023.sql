-- A keyed digest of the network that a client was registered from: the network with the most clients without a grant loses one first. Absent for
-- registrations of earlier releases, and where no address is counted.
ALTER TABLE oauth_clients ADD COLUMN network $BIN;
