-- The whole schema of the first release. Words that differ between engines:
--   $INT    64-bit integer       $BIN    bytes
--   $ROWS   a table of rows in the order of writing
--   $KEYED  a table kept in the order of its key
-- Times are Unix microseconds, ids 16-byte UUIDs of version 7, digests 32 bytes, enumerations the numbers of src/codes.rs.
-- No sequences, no triggers, no clock and no JSON types: any SQL engine must be able to take over.

CREATE TABLE meta (k TEXT PRIMARY KEY, v TEXT NOT NULL) $KEYED;

CREATE TABLE nodes (
  id $INT PRIMARY KEY, epoch $INT NOT NULL, name TEXT NOT NULL, lease_until $INT NOT NULL, started_at $INT NOT NULL) $ROWS;

CREATE TABLE accounts (
  id $BIN PRIMARY KEY, public_id TEXT NOT NULL UNIQUE, status $INT NOT NULL DEFAULT 0,
  available $INT NOT NULL DEFAULT 0, held $INT NOT NULL DEFAULT 0, credit_limit $INT NOT NULL DEFAULT 0,
  rate_class TEXT NOT NULL DEFAULT 'free', cache_scope $INT NOT NULL DEFAULT 0,
  created_at $INT NOT NULL, updated_at $INT NOT NULL,
  CHECK (held >= 0), CHECK (credit_limit >= 0), CHECK (available >= -credit_limit)) $KEYED;

-- Written once, never changed. The key makes a second hold, a second settlement, or a settlement beside a release impossible.
-- `batch` is the number of the seal that the entry was committed with.
CREATE TABLE entries (
  op_id $BIN NOT NULL, phase $INT NOT NULL, kind $INT NOT NULL, account_id $BIN NOT NULL,
  d_avail $INT NOT NULL, d_held $INT NOT NULL, contra $INT NOT NULL, ref TEXT,
  price_ver $INT, node_id $INT NOT NULL, epoch $INT NOT NULL, batch $INT NOT NULL, at $INT NOT NULL,
  PRIMARY KEY (op_id, phase),
  CHECK (phase IN (0, 1)), CHECK (contra <> 0 OR d_avail + d_held = 0)) $KEYED;

-- Credits only: they are few, and have to be found by account and by reference. What requests cost is found through `usage`, so
-- that a request writes one index by account and not three.
CREATE UNIQUE INDEX entries_ref ON entries (account_id, ref) WHERE ref IS NOT NULL;

-- Open holds only, so that looking at all of them is cheap; no index by owner or expiry.
CREATE TABLE holds (
  id $BIN PRIMARY KEY, account_id $BIN NOT NULL, amount $INT NOT NULL, node_id $INT NOT NULL, epoch $INT NOT NULL,
  stage $INT NOT NULL DEFAULT 0, created_at $INT NOT NULL, expires_at $INT NOT NULL, CHECK (amount >= 0)) $KEYED;

CREATE TABLE usage (
  op_id $BIN PRIMARY KEY, account_id $BIN NOT NULL, credential_id $BIN, endpoint $INT NOT NULL, model TEXT NOT NULL, upstream TEXT,
  prompt_tokens $INT NOT NULL, completion_tokens $INT NOT NULL, flags $INT NOT NULL, cost $INT NOT NULL,
  writeoff $INT NOT NULL DEFAULT 0, http_status $INT NOT NULL, ttfb_us $INT, total_us $INT, at $INT NOT NULL) $KEYED;
CREATE INDEX usage_account ON usage (account_id, at);

CREATE TABLE logins (
  id $BIN PRIMARY KEY, account_id $BIN NOT NULL, kind $INT NOT NULL, address TEXT NOT NULL, verified_at $INT,
  created_at $INT NOT NULL, UNIQUE (kind, address)) $KEYED;
CREATE INDEX logins_account ON logins (account_id);

CREATE TABLE login_codes (
  id $BIN PRIMARY KEY, login_id $BIN, session_hash $BIN NOT NULL, code_hash $BIN NOT NULL, attempts $INT NOT NULL DEFAULT 0,
  expires_at $INT NOT NULL, used_at $INT) $KEYED;

-- `models`: the only models the credential may use, one per line; absent for all. `cap`: the most it may ever spend.
CREATE TABLE credentials (
  hash $BIN PRIMARY KEY, id $BIN NOT NULL UNIQUE, kind $INT NOT NULL, account_id $BIN NOT NULL, client_id TEXT,
  grant_id $BIN, resource $INT NOT NULL, scopes $INT NOT NULL, label TEXT, hint TEXT, models TEXT, cap $INT,
  created_at $INT NOT NULL, expires_at $INT NOT NULL, revoked_at $INT) $KEYED;
CREATE INDEX credentials_account ON credentials (account_id);
CREATE INDEX credentials_expiry ON credentials (expires_at);

CREATE TABLE oauth_clients (id TEXT PRIMARY KEY, name TEXT NOT NULL, redirect_uris TEXT NOT NULL, created_at $INT NOT NULL) $KEYED;

CREATE TABLE oauth_codes (
  hash $BIN PRIMARY KEY, client_id TEXT NOT NULL, account_id $BIN NOT NULL, redirect_uri TEXT NOT NULL, challenge TEXT NOT NULL,
  resource $INT NOT NULL, scopes $INT NOT NULL, expires_at $INT NOT NULL, used_at $INT) $KEYED;

CREATE TABLE idempotency (
  account_id $BIN NOT NULL, endpoint $INT NOT NULL, key TEXT NOT NULL, request_hash $BIN NOT NULL, state $INT NOT NULL,
  point $INT NOT NULL DEFAULT 0, locked_until $INT NOT NULL, status $INT, headers TEXT, body $BIN, created_at $INT NOT NULL,
  expires_at $INT NOT NULL, PRIMARY KEY (account_id, endpoint, key)) $ROWS;
CREATE INDEX idempotency_expiry ON idempotency (expires_at);

CREATE TABLE checkouts (
  id TEXT PRIMARY KEY, account_id $BIN NOT NULL, status $INT NOT NULL, purchase_id $BIN NOT NULL, created_at $INT NOT NULL,
  expires_at $INT NOT NULL) $KEYED;

CREATE TABLE payments (
  id $BIN PRIMARY KEY, account_id $BIN NOT NULL, route $INT NOT NULL, provider_ref TEXT NOT NULL, amount $INT NOT NULL,
  currency TEXT NOT NULL, status $INT NOT NULL, proof_hash $BIN, receipt TEXT, created_at $INT NOT NULL, settled_at $INT,
  UNIQUE (route, provider_ref)) $ROWS;

CREATE TABLE subscriptions (
  id $BIN PRIMARY KEY, account_id $BIN NOT NULL, product TEXT NOT NULL, route $INT NOT NULL, provider_ref TEXT NOT NULL,
  status $INT NOT NULL, period_start $INT NOT NULL, period_end $INT NOT NULL, updated_at $INT NOT NULL,
  UNIQUE (route, provider_ref)) $ROWS;
CREATE INDEX subscriptions_account ON subscriptions (account_id, period_end);

CREATE TABLE prices (
  ver $INT NOT NULL, model TEXT NOT NULL, in_per_mtok $INT NOT NULL, out_per_mtok $INT NOT NULL, per_request $INT NOT NULL,
  valid_from $INT NOT NULL, PRIMARY KEY (ver, model)) $KEYED;

-- One row beside each change of an account or credential, for nodes that keep them in memory.
CREATE TABLE changes (id $BIN PRIMARY KEY, at $INT NOT NULL, kind $INT NOT NULL, subject $BIN NOT NULL) $KEYED;
CREATE INDEX changes_at ON changes (at);

CREATE TABLE seals (
  node_id $INT NOT NULL, epoch $INT NOT NULL, n $INT NOT NULL, entries $INT NOT NULL, sum_avail $INT NOT NULL,
  sum_held $INT NOT NULL, prev $BIN NOT NULL, hash $BIN NOT NULL, at $INT NOT NULL, PRIMARY KEY (node_id, epoch, n)) $KEYED;

CREATE TABLE slices (
  account_id $BIN NOT NULL, node_id $INT NOT NULL, epoch $INT NOT NULL, granted $INT NOT NULL, expires_at $INT NOT NULL,
  PRIMARY KEY (account_id, node_id, epoch), CHECK (granted >= 0)) $ROWS;
