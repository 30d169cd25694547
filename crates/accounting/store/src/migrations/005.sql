-- The books as one row a commit, in place of several rows a request.

DROP TABLE entries;
DROP TABLE holds;
DROP TABLE usage;
DROP TABLE seals;

-- What was committed, in the order of the commits; written once, never changed. `body` has the parts as src/journal.rs packs them, the
-- other columns seal it and chain it to the commit before. `id`: node, run and number of the commit in one, as src/commit_id.rs
-- puts them together.
CREATE TABLE journal (
  id $INT PRIMARY KEY, entries $INT NOT NULL, sum_avail $INT NOT NULL, sum_held $INT NOT NULL, prev $BIN NOT NULL,
  hash $BIN NOT NULL, at $INT NOT NULL, body $BIN NOT NULL) $ROWS;

-- The last row of the journal that has been posted: `accounts.available`, `accounts.held`, `holds` and `postings` are as they were
-- then, and whoever reads them adds what the journal says since.
ALTER TABLE nodes ADD COLUMN posted $INT NOT NULL DEFAULT 0;

CREATE TABLE holds (
  id $BIN PRIMARY KEY, account_id $BIN NOT NULL, amount $INT NOT NULL, node_id $INT NOT NULL, epoch $INT NOT NULL,
  created_at $INT NOT NULL, expires_at $INT NOT NULL, CHECK (amount >= 0)) $KEYED;

-- What the owner of an account sees of the journal (all but holds and releases), gathered by account. `id` is the row of the journal
-- that its last record is in, `at_min` and `at_max` the time of its first and last record.
CREATE TABLE postings (
  account_id $BIN NOT NULL, at_max $INT NOT NULL, id $INT NOT NULL, at_min $INT NOT NULL, body $BIN NOT NULL,
  PRIMARY KEY (account_id, at_max, id)) $KEYED;

-- What each reference was booked as, so that it is booked once.
CREATE TABLE credit_references (
  account_id $BIN NOT NULL, reference TEXT NOT NULL, op_id $BIN NOT NULL, kind $INT NOT NULL, amount $INT NOT NULL,
  PRIMARY KEY (account_id, reference)) $KEYED;
