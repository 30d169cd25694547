-- A keyed digest of the network that a client was registered from: the network with the most clients without a grant loses one first. Absent for
-- registrations of earlier releases, and where no address is counted.
ALTER TABLE oauth_clients ADD COLUMN network $BIN;

-- Mailboxes and numbers whose account has got credits for signing up, as keyed digests of the address without its tag. They outlast the account, so
-- that a deleted one is not made again for the credits.
CREATE TABLE signup_grant_addresses (key $BIN PRIMARY KEY, at $INT NOT NULL) $KEYED;
