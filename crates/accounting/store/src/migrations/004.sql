-- What is sold beside credits. One heading for each part.

-- The plan: what an account has, and what was paid for it -----------------------------------------------------------------------------

-- The first release made these two and used neither.
DROP TABLE subscriptions;
DROP TABLE payments;

-- One row for each account that ever had the plan. `reference`: what the route calls it. `renews`: whether somebody has leave to charge for
-- the next period. `extra`: how much of the time before `period_end` was paid for by another route than the one that renews it,
-- microseconds. `version` counts the changes: whoever changes the row names the one that it has seen.
CREATE TABLE subscriptions (
  account_id $BIN PRIMARY KEY, id $BIN NOT NULL UNIQUE, route $INT NOT NULL, reference TEXT NOT NULL, status $INT NOT NULL,
  period_start $INT NOT NULL, period_end $INT NOT NULL, extra $INT NOT NULL, renews $INT NOT NULL, version $INT NOT NULL,
  created_at $INT NOT NULL, updated_at $INT NOT NULL, CHECK (period_start <= period_end), CHECK (extra >= 0)) $KEYED;

-- Money that has moved. `amount` in cents, `credits` in micro-credits: what it gave beside the time from `period_start` to `period_end`.
CREATE TABLE payments (
  id $BIN PRIMARY KEY, account_id $BIN NOT NULL, subscription_id $BIN NOT NULL, route $INT NOT NULL, provider_ref TEXT NOT NULL,
  amount $INT NOT NULL, credits $INT NOT NULL, period_start $INT NOT NULL, period_end $INT NOT NULL, status $INT NOT NULL, receipt TEXT,
  at $INT NOT NULL, returned_at $INT, UNIQUE (route, provider_ref), CHECK (amount > 0), CHECK (credits >= 0)) $KEYED;
CREATE INDEX payments_account ON payments (account_id, at);

-- The class that the plan gives, and until when; after that, and without one, `rate_class` counts.
ALTER TABLE accounts ADD COLUMN plan_class TEXT;
ALTER TABLE accounts ADD COLUMN plan_until $INT;

-- Checkouts ---------------------------------------------------------------------------------------------------------------------------

-- The first release made it and did not use it.
DROP TABLE checkouts;

-- `credential_id`: the credential that it was made with. `platform`: the host that the platform's profile lies at. `buyer`: JSON.
-- `mandate_id`: the mandate that its owner was led to. `asked`: the digest of the name of the request to complete it. `version` counts the changes: whoever changes the row names the one that it has
-- seen.
CREATE TABLE checkouts (
  id $BIN PRIMARY KEY, account_id $BIN NOT NULL, state $INT NOT NULL, version $INT NOT NULL, credential_id $BIN, platform TEXT,
  buyer TEXT, mandate_id $BIN, asked $BIN, subscription_id $BIN, created_at $INT NOT NULL, updated_at $INT NOT NULL,
  expires_at $INT NOT NULL) $KEYED;
CREATE INDEX checkouts_account ON checkouts (account_id, created_at);
CREATE INDEX checkouts_updated ON checkouts (updated_at);

-- Leave to charge again and again ---------------------------------------------------------------------------------------------------

-- One row for each recurring payment an account sets out to agree to. `version`, `rings` and `heard` as with `top_ups`. `provider_ref`:
-- the provider's subscription. `payment`, `paid_at`: the last charge that bought a period, and when the provider took it; `paid_until`:
-- the end of that period. `advanced_for`: the time of a payment that was told and not yet listed, for which a day was given. `left_at`: when its
-- owner ended it.
CREATE TABLE mandates (
  id $BIN PRIMARY KEY, account_id $BIN NOT NULL, state $INT NOT NULL, version $INT NOT NULL, plan_id TEXT NOT NULL, price $INT NOT NULL,
  create_key TEXT NOT NULL, provider_ref TEXT UNIQUE, approve_url TEXT, return_url TEXT NOT NULL, cancel_url TEXT NOT NULL, agreed_at $INT,
  activated_at $INT, payment TEXT, paid_at $INT, paid_until $INT, advanced_for $INT, left_at $INT, note TEXT, looks $INT NOT NULL,
  look_at $INT, rings $INT NOT NULL, heard $INT NOT NULL, created_at $INT NOT NULL, updated_at $INT NOT NULL,
  CHECK (price > 0), CHECK (heard <= rings)) $KEYED;
CREATE INDEX mandates_account ON mandates (account_id, created_at);
-- At most one that is offered, and one that is agreed to or charged: who has a charge that failed may be offered another.
CREATE UNIQUE INDEX mandates_offered ON mandates (account_id) WHERE state IN (0, 1);
CREATE UNIQUE INDEX mandates_charged ON mandates (account_id) WHERE state IN (2, 3);
CREATE INDEX mandates_look ON mandates (look_at) WHERE look_at IS NOT NULL;
CREATE INDEX mandates_rung ON mandates (updated_at) WHERE rings > heard;

-- Transfers that buyers have signed (x402) -----------------------------------------------------------------------------------------------

-- One row for each authorization. `account_id`: who has shown it first, and gets what it pays for. `digest`: of the payment, whole. `sealed`:
-- what is sent to the chain by. States are those of src/codes.rs; 1 and 2 may still move money.
CREATE TABLE authorizations (
  network TEXT NOT NULL, asset $BIN NOT NULL, payer $BIN NOT NULL, nonce $BIN NOT NULL, account_id $BIN NOT NULL, state $INT NOT NULL,
  version $INT NOT NULL, digest $BIN NOT NULL, sealed $BIN, valid_before $INT NOT NULL, transaction_hash $BIN, receipt TEXT, note TEXT,
  looks $INT NOT NULL, look_at $INT, created_at $INT NOT NULL, updated_at $INT NOT NULL, PRIMARY KEY (network, asset, payer, nonce)) $ROWS;
-- One at a time: this is what keeps a buyer from paying twice through two requests at once.
CREATE UNIQUE INDEX authorizations_open ON authorizations (account_id) WHERE state IN (1, 2);
CREATE INDEX authorizations_look ON authorizations (look_at) WHERE look_at IS NOT NULL;
CREATE INDEX authorizations_over ON authorizations (valid_before) WHERE state IN (0, 5);
