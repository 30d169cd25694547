-- Idempotency keys of completions: a key is a row of at most 200 bytes, and a body is stored once, however many keys have it. `name` is the
-- digest of endpoint and key, `answer` that of the body; both are BLAKE3. `expires_at` below zero marks a lapsed claim. Keys of purchases
-- stay in `idempotency`, and so do the answers that a release without these tables recorded, until they expire.
CREATE TABLE completion_keys (
  account_id $BIN NOT NULL, name $BIN NOT NULL, request_hash $BIN NOT NULL, state $INT NOT NULL, token $INT NOT NULL, status $INT,
  headers TEXT, answer $BIN, expires_at $INT NOT NULL, PRIMARY KEY (account_id, name)) $KEYED;
CREATE INDEX completion_keys_expiry ON completion_keys (expires_at) WHERE state = 1;

-- `account_id`: the account whose request stored it first, which it counts for. `uses`: the keys that have it.
CREATE TABLE answer_bodies (digest $BIN PRIMARY KEY, account_id $BIN NOT NULL, uses $INT NOT NULL, body $BIN NOT NULL) $ROWS;

-- Keys and bytes of bodies, by account.
CREATE TABLE completion_key_totals (account_id $BIN PRIMARY KEY, keys $INT NOT NULL, bytes $INT NOT NULL) $KEYED;
