-- A database as the release before `Timestamp` and `Deadline` left it when it was killed: two open holds, one of them only in the
-- journal, and two claimed idempotency keys. Their ends are microseconds of that process's monotonic clock, counted from a wall clock
-- that was ten years ahead, or that stood at 1970, when the process began.
PRAGMA application_id = 1953261428;
PRAGMA user_version = 3;
BEGIN TRANSACTION;
CREATE TABLE accounts (
  id BLOB PRIMARY KEY, public_id TEXT NOT NULL UNIQUE, status INTEGER NOT NULL DEFAULT 0,
  available INTEGER NOT NULL DEFAULT 0, held INTEGER NOT NULL DEFAULT 0, credit_limit INTEGER NOT NULL DEFAULT 0,
  rate_class TEXT NOT NULL DEFAULT 'free', cache_scope INTEGER NOT NULL DEFAULT 0,
  created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL, plan_class TEXT, plan_until INTEGER,
  CHECK (held >= 0), CHECK (credit_limit >= 0), CHECK (available >= -credit_limit)) STRICT, WITHOUT ROWID;
INSERT INTO "accounts" VALUES(
  X'0174876E800070009E3779B97F4A7C15', 'acct_0174876e800070009e3779b97f4a7c15', 0, 700, 300, 0, 'free', 0, 1700000000000000,
  1700000000000000, NULL, NULL);
CREATE TABLE authorizations (
  network TEXT NOT NULL, asset BLOB NOT NULL, payer BLOB NOT NULL, nonce BLOB NOT NULL, account_id BLOB NOT NULL, state INTEGER NOT NULL,
  version INTEGER NOT NULL, digest BLOB NOT NULL, sealed BLOB, valid_before INTEGER NOT NULL, transaction_hash BLOB, receipt TEXT,
    note TEXT,
  looks INTEGER NOT NULL, look_at INTEGER, created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL, PRIMARY KEY (network, asset,
    payer, nonce)) STRICT;
CREATE TABLE changes (id BLOB PRIMARY KEY, at INTEGER NOT NULL, kind INTEGER NOT NULL, subject BLOB NOT NULL) STRICT, WITHOUT ROWID;
INSERT INTO "changes" VALUES(X'018BCFE5680000010000000100000001',1700000000000000,1,X'0174876E800070009E3779B97F4A7C15');
CREATE TABLE checkouts (
  id BLOB PRIMARY KEY, account_id BLOB NOT NULL, state INTEGER NOT NULL, version INTEGER NOT NULL, credential_id BLOB, platform TEXT,
  buyer TEXT, mandate_id BLOB, asked BLOB, subscription_id BLOB, created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL,
  expires_at INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE credentials (
  hash BLOB PRIMARY KEY, id BLOB NOT NULL UNIQUE, kind INTEGER NOT NULL, account_id BLOB NOT NULL, client_id TEXT,
  grant_id BLOB, resource INTEGER NOT NULL, scopes INTEGER NOT NULL, label TEXT, hint TEXT, models TEXT, cap INTEGER,
  created_at INTEGER NOT NULL, expires_at INTEGER NOT NULL, revoked_at INTEGER, cap_period INTEGER, used_at INTEGER) STRICT,
    WITHOUT ROWID;
CREATE TABLE credit_references (
  account_id BLOB NOT NULL, reference TEXT NOT NULL, op_id BLOB NOT NULL, kind INTEGER NOT NULL, amount INTEGER NOT NULL,
  PRIMARY KEY (account_id, reference)) STRICT, WITHOUT ROWID;
INSERT INTO "credit_references" VALUES(X'0174876E800070009E3779B97F4A7C15','first',X'018BCFF4AA4170009B563047CB21EB55',6,1000);
CREATE TABLE holds (
  id BLOB PRIMARY KEY, account_id BLOB NOT NULL, amount INTEGER NOT NULL, node_id INTEGER NOT NULL, epoch INTEGER NOT NULL,
  created_at INTEGER NOT NULL, expires_at INTEGER NOT NULL, CHECK (amount >= 0)) STRICT, WITHOUT ROWID;
INSERT INTO "holds" VALUES(
  X'018BCFE5680170009E3779B97F4A7C15', X'0174876E800070009E3779B97F4A7C15', 300, 1, 2, 1700000000000000, 2015360000000000);
CREATE TABLE idempotency (
  account_id BLOB NOT NULL, endpoint INTEGER NOT NULL, key TEXT NOT NULL, request_hash BLOB NOT NULL, state INTEGER NOT NULL,
  point INTEGER NOT NULL DEFAULT 0, locked_until INTEGER NOT NULL, status INTEGER, headers TEXT, body BLOB, created_at INTEGER NOT NULL,
  expires_at INTEGER NOT NULL, PRIMARY KEY (account_id, endpoint, key)) STRICT;
INSERT INTO "idempotency" VALUES(
  X'0174876E800070009E3779B97F4A7C15', 1, 'claimed', X'0909090909090909090909090909090909090909090909090909090909090909', 0, 0,
  2015360000000000, NULL, NULL, NULL, 1700000000000000, 1700086400000000);
INSERT INTO "idempotency" VALUES(
  X'0174876E800070009E3779B97F4A7C15', 1, 'past', X'0909090909090909090909090909090909090909090909090909090909090909', 0, 0, 5000000,
  NULL, NULL, NULL, 1700000000000000, 1700086400000000);
CREATE TABLE journal (
  id INTEGER PRIMARY KEY, entries INTEGER NOT NULL, sum_avail INTEGER NOT NULL, sum_held INTEGER NOT NULL, prev BLOB NOT NULL,
  hash BLOB NOT NULL, at INTEGER NOT NULL, body BLOB NOT NULL) STRICT;
INSERT INTO "journal" VALUES(
  72057611217797121, 1, 1000, 0, X'0000000000000000000000000000000000000000000000000000000000000000',
  X'76432308F0CAD00EED0F2E008B24A12045E5F2ABD42E939BD673686148EF0C80', 1700000000000000,
  X'01010566697273742C0006018BCFF4AA4170009B563047CB21EB550174876E800070009E3779B97F4A7C1500401E18240A0600D00F00');
INSERT INTO "journal" VALUES(
  72057628397666305, 1, -300, 300, X'76432308F0CAD00EED0F2E008B24A12045E5F2ABD42E939BD673686148EF0C80',
  X'F72F38F3171F823452CA49378C213237ED314EDAE1C6910321F5BE16B54A5669', 1700000000000000,
  X'0100340001018BCFE5680170009E3779B97F4A7C150174876E800070009E3779B97F4A7C1500401E18240A0600D804008080B68CAFB48F01');
INSERT INTO "journal" VALUES(
  72057645577535489, 1, -200, 200, X'F72F38F3171F823452CA49378C213237ED314EDAE1C6910321F5BE16B54A5669',
  X'B1D00BEA4DDAE3772DE46C20E9E98909E1E66AAC5CF63BF4B91ECB41C6E77CFA', 1700000000000000,
  X'0100340001018BCFE568027000BC6EF372FE94F82A0174876E800070009E3779B97F4A7C1500401E18240A0600900300FFD28FFD82898506');
CREATE TABLE login_codes (
  id BLOB PRIMARY KEY, session_hash BLOB NOT NULL UNIQUE, purpose INTEGER NOT NULL, kind INTEGER NOT NULL, address TEXT NOT NULL,
  login_id BLOB, code_hash BLOB NOT NULL, attempts INTEGER NOT NULL DEFAULT 0, created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE login_failures (key BLOB PRIMARY KEY, failures INTEGER NOT NULL, since INTEGER NOT NULL, until INTEGER NOT NULL) STRICT,
    WITHOUT ROWID;
CREATE TABLE login_sends (key BLOB NOT NULL, at INTEGER NOT NULL) STRICT;
CREATE TABLE logins (
  id BLOB PRIMARY KEY, account_id BLOB NOT NULL, kind INTEGER NOT NULL, address TEXT NOT NULL, verified_at INTEGER,
  created_at INTEGER NOT NULL, UNIQUE (kind, address)) STRICT, WITHOUT ROWID;
CREATE TABLE mandates (
  id BLOB PRIMARY KEY, account_id BLOB NOT NULL, state INTEGER NOT NULL, version INTEGER NOT NULL, plan_id TEXT NOT NULL,
    price INTEGER NOT NULL,
  create_key TEXT NOT NULL, provider_ref TEXT UNIQUE, approve_url TEXT, return_url TEXT NOT NULL, cancel_url TEXT NOT NULL,
    agreed_at INTEGER,
  activated_at INTEGER, payment TEXT, paid_at INTEGER, paid_until INTEGER, advanced_for INTEGER, left_at INTEGER, note TEXT,
    looks INTEGER NOT NULL,
  look_at INTEGER, rings INTEGER NOT NULL, heard INTEGER NOT NULL, created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL,
  CHECK (price > 0), CHECK (heard <= rings)) STRICT, WITHOUT ROWID;
CREATE TABLE meta (k TEXT PRIMARY KEY, v TEXT NOT NULL) STRICT, WITHOUT ROWID;
INSERT INTO "meta" VALUES('schema','6');
INSERT INTO "meta" VALUES('secret','0707070707070707070707070707070707070707070707070707070707070707');
CREATE TABLE nodes (
  id INTEGER PRIMARY KEY, epoch INTEGER NOT NULL, name TEXT NOT NULL, lease_until INTEGER NOT NULL, started_at INTEGER NOT NULL,
    posted INTEGER NOT NULL DEFAULT 0) STRICT;
INSERT INTO "nodes" VALUES(1,3,'gateway',0,1700000000000000,72057628397666305);
CREATE TABLE oauth_clients (
  id TEXT PRIMARY KEY, name TEXT, redirect_uris TEXT NOT NULL, refresh INTEGER NOT NULL, document INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
  used_at INTEGER) STRICT, WITHOUT ROWID;
CREATE TABLE oauth_codes (
  hash BLOB PRIMARY KEY, grant_id BLOB NOT NULL, challenge TEXT NOT NULL, refusals INTEGER NOT NULL DEFAULT 0,
    expires_at INTEGER NOT NULL,
  used_at INTEGER) STRICT, WITHOUT ROWID;
CREATE TABLE oauth_grants (
  id BLOB PRIMARY KEY, account_id BLOB NOT NULL, client_id TEXT NOT NULL, client_name TEXT, refresh INTEGER NOT NULL,
    redirect_uri TEXT NOT NULL,
  resource INTEGER NOT NULL, asked TEXT, scopes INTEGER NOT NULL, created_at INTEGER NOT NULL, used_at INTEGER NOT NULL,
    ends_at INTEGER NOT NULL,
  revoked_at INTEGER) STRICT, WITHOUT ROWID;
CREATE TABLE oauth_pending (
  id BLOB PRIMARY KEY, client_id TEXT NOT NULL, client_name TEXT, refresh INTEGER NOT NULL, document INTEGER NOT NULL,
    redirect_uri TEXT NOT NULL,
  state TEXT, challenge TEXT NOT NULL, resource INTEGER NOT NULL, asked TEXT, scopes INTEGER NOT NULL, session BLOB,
    created_at INTEGER NOT NULL,
  expires_at INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE oauth_refresh (
  hash BLOB PRIMARY KEY, grant_id BLOB NOT NULL, expires_at INTEGER NOT NULL, spent_at INTEGER, successor BLOB) STRICT, WITHOUT ROWID;
CREATE TABLE outbox (
  id BLOB PRIMARY KEY, kind INTEGER NOT NULL, recipient TEXT NOT NULL, purpose INTEGER NOT NULL, sealed BLOB NOT NULL,
  tries INTEGER NOT NULL DEFAULT 0, created_at INTEGER NOT NULL, next_at INTEGER NOT NULL, expires_at INTEGER NOT NULL) STRICT,
    WITHOUT ROWID;
CREATE TABLE payment_notices (id TEXT PRIMARY KEY, kind TEXT NOT NULL, at INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE payments (
  id BLOB PRIMARY KEY, account_id BLOB NOT NULL, subscription_id BLOB NOT NULL, route INTEGER NOT NULL, provider_ref TEXT NOT NULL,
  amount INTEGER NOT NULL, credits INTEGER NOT NULL, period_start INTEGER NOT NULL, period_end INTEGER NOT NULL,
    status INTEGER NOT NULL, receipt TEXT,
  at INTEGER NOT NULL, returned_at INTEGER, UNIQUE (route, provider_ref), CHECK (amount > 0), CHECK (credits >= 0)) STRICT, WITHOUT ROWID;
CREATE TABLE postings (
  account_id BLOB NOT NULL, at_max INTEGER NOT NULL, id INTEGER NOT NULL, at_min INTEGER NOT NULL, body BLOB NOT NULL,
  PRIMARY KEY (account_id, at_max, id)) STRICT, WITHOUT ROWID;
INSERT INTO "postings" VALUES(
  X'0174876E800070009E3779B97F4A7C15', 1700000000000000, 72057611217797121, 1700000000000000,
  X'01010566697273742C0006018BCFF4AA4170009B563047CB21EB550174876E800070009E3779B97F4A7C1500401E18240A0600D00F00');
CREATE TABLE prices (
  ver INTEGER NOT NULL, model TEXT NOT NULL, in_per_mtok INTEGER NOT NULL, out_per_mtok INTEGER NOT NULL, per_request INTEGER NOT NULL,
  valid_from INTEGER NOT NULL, PRIMARY KEY (ver, model)) STRICT, WITHOUT ROWID;
CREATE TABLE sessions (
  hash BLOB PRIMARY KEY, account_id BLOB NOT NULL, login_id BLOB NOT NULL, started_at INTEGER NOT NULL, confirmed_at INTEGER NOT NULL,
  seen_at INTEGER NOT NULL, expires_at INTEGER NOT NULL, draft_path TEXT, draft TEXT) STRICT, WITHOUT ROWID;
CREATE TABLE signup_grants (account_id BLOB PRIMARY KEY, amount INTEGER NOT NULL, at INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE slices (
  account_id BLOB NOT NULL, node_id INTEGER NOT NULL, epoch INTEGER NOT NULL, granted INTEGER NOT NULL, expires_at INTEGER NOT NULL,
  PRIMARY KEY (account_id, node_id, epoch), CHECK (granted >= 0)) STRICT;
CREATE TABLE subscriptions (
  account_id BLOB PRIMARY KEY, id BLOB NOT NULL UNIQUE, route INTEGER NOT NULL, reference TEXT NOT NULL, status INTEGER NOT NULL,
  period_start INTEGER NOT NULL, period_end INTEGER NOT NULL, extra INTEGER NOT NULL, renews INTEGER NOT NULL, version INTEGER NOT NULL,
  created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL, CHECK (period_start <= period_end), CHECK (extra >= 0)) STRICT, WITHOUT ROWID;
CREATE TABLE top_ups (
  id BLOB PRIMARY KEY, account_id BLOB NOT NULL, state INTEGER NOT NULL, version INTEGER NOT NULL, price INTEGER NOT NULL,
  credits INTEGER NOT NULL, create_key TEXT NOT NULL, order_ref TEXT UNIQUE, approve_url TEXT, capture_key TEXT, capture_ref TEXT UNIQUE,
  declines INTEGER NOT NULL, returned INTEGER NOT NULL, taken_back INTEGER NOT NULL, owed INTEGER NOT NULL, note TEXT,
    looks INTEGER NOT NULL,
  look_at INTEGER, rings INTEGER NOT NULL, heard INTEGER NOT NULL, created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL,
  CHECK (price > 0), CHECK (credits > 0), CHECK (heard <= rings)) STRICT, WITHOUT ROWID;
CREATE INDEX logins_account ON logins (account_id);
CREATE INDEX credentials_account ON credentials (account_id);
CREATE INDEX credentials_expiry ON credentials (expires_at);
CREATE INDEX idempotency_expiry ON idempotency (expires_at);
CREATE INDEX changes_at ON changes (at);
CREATE INDEX oauth_clients_unused ON oauth_clients (created_at) WHERE used_at IS NULL;
CREATE INDEX oauth_clients_used ON oauth_clients (used_at) WHERE used_at IS NOT NULL;
CREATE INDEX oauth_pending_created ON oauth_pending (created_at);
CREATE INDEX oauth_grants_account ON oauth_grants (account_id, client_id);
CREATE INDEX oauth_grants_end ON oauth_grants (ends_at);
CREATE INDEX oauth_codes_grant ON oauth_codes (grant_id);
CREATE INDEX oauth_refresh_grant ON oauth_refresh (grant_id);
CREATE INDEX credentials_grant ON credentials (grant_id) WHERE grant_id IS NOT NULL;
CREATE INDEX top_ups_account ON top_ups (account_id, created_at);
CREATE INDEX top_ups_look ON top_ups (look_at) WHERE look_at IS NOT NULL;
CREATE INDEX top_ups_rung ON top_ups (updated_at) WHERE rings > heard;
CREATE INDEX payment_notices_at ON payment_notices (at);
CREATE INDEX sessions_account ON sessions (account_id);
CREATE INDEX sessions_expiry ON sessions (expires_at);
CREATE INDEX login_codes_expiry ON login_codes (expires_at);
CREATE INDEX login_sends_key ON login_sends (key, at);
CREATE INDEX login_sends_at ON login_sends (at);
CREATE INDEX outbox_next ON outbox (next_at);
CREATE INDEX payments_account ON payments (account_id, at);
CREATE INDEX checkouts_account ON checkouts (account_id, created_at);
CREATE INDEX checkouts_updated ON checkouts (updated_at);
CREATE INDEX mandates_account ON mandates (account_id, created_at);
CREATE UNIQUE INDEX mandates_offered ON mandates (account_id) WHERE state IN (0, 1);
CREATE UNIQUE INDEX mandates_charged ON mandates (account_id) WHERE state IN (2, 3);
CREATE INDEX mandates_look ON mandates (look_at) WHERE look_at IS NOT NULL;
CREATE INDEX mandates_rung ON mandates (updated_at) WHERE rings > heard;
CREATE UNIQUE INDEX authorizations_open ON authorizations (account_id) WHERE state IN (1, 2);
CREATE INDEX authorizations_look ON authorizations (look_at) WHERE look_at IS NOT NULL;
CREATE INDEX authorizations_over ON authorizations (valid_before) WHERE state IN (0, 5);
CREATE INDEX authorizations_transaction ON authorizations (network, transaction_hash) WHERE transaction_hash IS NOT NULL;
CREATE INDEX authorizations_unresolved ON authorizations (created_at) WHERE state IN (1, 2, 6);
COMMIT;
