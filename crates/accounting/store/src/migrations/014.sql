-- Certificates by ACME (RFC 8555). `acme_accounts`: the account at a certificate authority, by the URL of its directory and the id of the
-- external account (empty for none); `sealed` has its URL and key. `acme_certificates`: one for each directory and set of names, `id` being
-- the digest of both; `sealed` has the private key and the chain, null before the first order has succeeded. An order is begun by the write
-- that raises `failures` and sets `next_attempt_at`, before which no process begins another one; a success sets `failures` to zero.
CREATE TABLE acme_accounts (
  directory TEXT NOT NULL, key_id TEXT NOT NULL, version $INT NOT NULL, sealed $BIN NOT NULL, created_at $INT NOT NULL,
  updated_at $INT NOT NULL, PRIMARY KEY (directory, key_id)) $KEYED;
CREATE TABLE acme_certificates (
  id $BIN PRIMARY KEY, directory TEXT NOT NULL, names TEXT NOT NULL, version $INT NOT NULL, sealed $BIN, expires_at $INT, renew_at $INT,
  failures $INT NOT NULL, next_attempt_at $INT NOT NULL, note TEXT, created_at $INT NOT NULL, updated_at $INT NOT NULL) $KEYED;
