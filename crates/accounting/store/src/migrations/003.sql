-- What people and programs need to get in. One heading for each part of the service.

-- OAuth: clients, what they ask for, and what they were granted ------------------------------------------------------------------

-- The first release made these two and used neither.
DROP TABLE oauth_clients;
DROP TABLE oauth_codes;

-- `redirect_uris`: one per line. `refresh`: whether it registered for refresh tokens. `document`: whether its id is the address of a
-- document about it. `used_at`: when somebody last allowed it something; absent before the first time.
CREATE TABLE oauth_clients (
  id TEXT PRIMARY KEY, name TEXT, redirect_uris TEXT NOT NULL, refresh $INT NOT NULL, document $INT NOT NULL, created_at $INT NOT NULL,
  used_at $INT) $KEYED;
CREATE INDEX oauth_clients_unused ON oauth_clients (created_at) WHERE used_at IS NULL;
CREATE INDEX oauth_clients_used ON oauth_clients (used_at) WHERE used_at IS NOT NULL;

-- Requests for authorization that a person has yet to decide on. `session`: the digest of the session that may; absent until one has
-- looked at it. `asked`: the resource as the client wrote it.
CREATE TABLE oauth_pending (
  id $BIN PRIMARY KEY, client_id TEXT NOT NULL, client_name TEXT, refresh $INT NOT NULL, document $INT NOT NULL, redirect_uri TEXT NOT NULL,
  state TEXT, challenge TEXT NOT NULL, resource $INT NOT NULL, asked TEXT, scopes $INT NOT NULL, session $BIN, created_at $INT NOT NULL,
  expires_at $INT NOT NULL) $KEYED;
CREATE INDEX oauth_pending_created ON oauth_pending (created_at);

-- A decision, and the family of all that came from it. `ends_at`: when nothing of the family works any more by itself.
CREATE TABLE oauth_grants (
  id $BIN PRIMARY KEY, account_id $BIN NOT NULL, client_id TEXT NOT NULL, client_name TEXT, refresh $INT NOT NULL, redirect_uri TEXT NOT NULL,
  resource $INT NOT NULL, asked TEXT, scopes $INT NOT NULL, created_at $INT NOT NULL, used_at $INT NOT NULL, ends_at $INT NOT NULL,
  revoked_at $INT) $KEYED;
CREATE INDEX oauth_grants_account ON oauth_grants (account_id, client_id);
CREATE INDEX oauth_grants_end ON oauth_grants (ends_at);

CREATE TABLE oauth_codes (
  hash $BIN PRIMARY KEY, grant_id $BIN NOT NULL, challenge TEXT NOT NULL, refusals $INT NOT NULL DEFAULT 0, expires_at $INT NOT NULL,
  used_at $INT) $KEYED;
CREATE INDEX oauth_codes_grant ON oauth_codes (grant_id);

-- `successor`: the digest of the token that took its place.
CREATE TABLE oauth_refresh (
  hash $BIN PRIMARY KEY, grant_id $BIN NOT NULL, expires_at $INT NOT NULL, spent_at $INT, successor $BIN) $KEYED;
CREATE INDEX oauth_refresh_grant ON oauth_refresh (grant_id);

CREATE INDEX credentials_grant ON credentials (grant_id) WHERE grant_id IS NOT NULL;
-- When it was last let in, to within minutes.
ALTER TABLE credentials ADD COLUMN used_at $INT;

-- Adding credits --------------------------------------------------------------------------------------------------------------------

-- One row for each time an account sets out to buy credits. `version` counts its changes: whoever changes it names the one that it has
-- seen. `rings` counts notices of news, `heard` those that were looked at. Money in cents, credits in micro-credits.
CREATE TABLE top_ups (
  id $BIN PRIMARY KEY, account_id $BIN NOT NULL, state $INT NOT NULL, version $INT NOT NULL, price $INT NOT NULL,
  credits $INT NOT NULL, create_key TEXT NOT NULL, order_ref TEXT UNIQUE, approve_url TEXT, capture_key TEXT, capture_ref TEXT UNIQUE,
  declines $INT NOT NULL, returned $INT NOT NULL, taken_back $INT NOT NULL, owed $INT NOT NULL, note TEXT, looks $INT NOT NULL,
  look_at $INT, rings $INT NOT NULL, heard $INT NOT NULL, created_at $INT NOT NULL, updated_at $INT NOT NULL,
  CHECK (price > 0), CHECK (credits > 0), CHECK (heard <= rings)) $KEYED;
CREATE INDEX top_ups_account ON top_ups (account_id, created_at);
CREATE INDEX top_ups_look ON top_ups (look_at) WHERE look_at IS NOT NULL;
CREATE INDEX top_ups_rung ON top_ups (updated_at) WHERE rings > heard;

-- The ids of a payment provider's notices, so that each is heard once.
CREATE TABLE payment_notices (id TEXT PRIMARY KEY, kind TEXT NOT NULL, at $INT NOT NULL) $KEYED;
CREATE INDEX payment_notices_at ON payment_notices (at);

-- Signing in ---------------------------------------------------------------------------------------------------------------------

-- Codes and sessions are kept as digests; addresses and networks that limits count by as keyed digests.
DROP TABLE login_codes;

-- `draft_path`, `draft`: a form that was sent too long after the last code, kept until its sender has confirmed who they are.
CREATE TABLE sessions (
  hash $BIN PRIMARY KEY, account_id $BIN NOT NULL, login_id $BIN NOT NULL, started_at $INT NOT NULL, confirmed_at $INT NOT NULL,
  seen_at $INT NOT NULL, expires_at $INT NOT NULL, draft_path TEXT, draft TEXT) $KEYED;
CREATE INDEX sessions_account ON sessions (account_id);
CREATE INDEX sessions_expiry ON sessions (expires_at);

-- One live code for each browser. `login_id` is absent where the address has no account.
CREATE TABLE login_codes (
  id $BIN PRIMARY KEY, session_hash $BIN NOT NULL UNIQUE, purpose $INT NOT NULL, kind $INT NOT NULL, address TEXT NOT NULL,
  login_id $BIN, code_hash $BIN NOT NULL, attempts $INT NOT NULL DEFAULT 0, created_at $INT NOT NULL, expires_at $INT NOT NULL) $KEYED;
CREATE INDEX login_codes_expiry ON login_codes (expires_at);

CREATE TABLE login_failures (key $BIN PRIMARY KEY, failures $INT NOT NULL, since $INT NOT NULL, until $INT NOT NULL) $KEYED;

CREATE TABLE login_sends (key $BIN NOT NULL, at $INT NOT NULL) $ROWS;
CREATE INDEX login_sends_key ON login_sends (key, at);
CREATE INDEX login_sends_at ON login_sends (at);

-- Messages that have to leave. `sealed` is what they say, readable with a key of the store alone.
CREATE TABLE outbox (
  id $BIN PRIMARY KEY, kind $INT NOT NULL, recipient TEXT NOT NULL, purpose $INT NOT NULL, sealed $BIN NOT NULL,
  tries $INT NOT NULL DEFAULT 0, created_at $INT NOT NULL, next_at $INT NOT NULL, expires_at $INT NOT NULL) $KEYED;
CREATE INDEX outbox_next ON outbox (next_at);

-- Credits promised at sign-up and not yet booked.
CREATE TABLE signup_grants (account_id $BIN PRIMARY KEY, amount $INT NOT NULL, at $INT NOT NULL) $KEYED;
