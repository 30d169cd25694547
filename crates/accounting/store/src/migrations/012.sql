-- Requests of an account that were refused or failed, for its owner: the newest thousand rows of each account. `requests`: 1, or the number of
-- equal ones that a row stands for; `at` and `total_us` are those of the last, `id` that of the first.
CREATE TABLE refusals (
  account_id $BIN NOT NULL, id $BIN NOT NULL, at $INT NOT NULL, credential_id $BIN, model TEXT, status $INT NOT NULL, code TEXT NOT NULL,
  total_us $INT, requests $INT NOT NULL, PRIMARY KEY (account_id, id)) $KEYED;
CREATE INDEX refusals_at ON refusals (account_id, at, id);
