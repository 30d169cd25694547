-- Usage of an account by day, model and credential (an empty one for none), as far as it is posted, so that a total costs as many rows as it
-- has days. Derived from the journal, like `postings`. `nodes.days_posted`: the last posted row of the journal that is in it; a release
-- without this table posts and leaves it behind, and then it is derived again.
CREATE TABLE usage_days (
  account_id $BIN NOT NULL, day_at $INT NOT NULL, model TEXT NOT NULL, credential_id $BIN NOT NULL, requests $INT NOT NULL,
  cache_hits $INT NOT NULL, incomplete $INT NOT NULL, prompt_tokens $INT NOT NULL, completion_tokens $INT NOT NULL, cost $INT NOT NULL,
  saved $INT NOT NULL, written_off $INT NOT NULL, PRIMARY KEY (account_id, day_at, model, credential_id)) $KEYED;
ALTER TABLE nodes ADD COLUMN days_posted $INT NOT NULL DEFAULT 0;
