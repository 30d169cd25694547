-- Closed months of the journal that were exported and removed (retention). The rows below are what the store still needs of the removed
-- commits: the carried state. A record of the journal (kind 11) seals it: `carry.digest` is the sum of the digests of all rows of the first
-- four tables. `number` counts the removals.
CREATE TABLE carry (id $INT PRIMARY KEY, number $INT NOT NULL, digest $BIN NOT NULL) $KEYED;

-- How far the journal of a node is removed: the id and the hash of the last removed row. `at`: the latest time in the removed rows.
CREATE TABLE carried_nodes (node_id $INT PRIMARY KEY, id $INT NOT NULL, hash $BIN NOT NULL, commits $INT NOT NULL, at $INT NOT NULL) $KEYED;

-- Records that are kept as they were: credits, and holds whose end is not removed. `id` is that of the removed row, `body` is packed like one.
CREATE TABLE carried_records (op_id $BIN PRIMARY KEY, id $INT NOT NULL, body $BIN NOT NULL) $KEYED;

-- Sums over the other records of an account in the journal of a node.
CREATE TABLE carried_sums (
  account_id $BIN NOT NULL, node_id $INT NOT NULL, charged $INT NOT NULL, written_off $INT NOT NULL, allotted $INT NOT NULL,
  PRIMARY KEY (account_id, node_id)) $KEYED;

-- Usage of the removed records, as in `usage_days`, which has that of the others.
CREATE TABLE carried_days (
  account_id $BIN NOT NULL, day_at $INT NOT NULL, model TEXT NOT NULL, credential_id $BIN NOT NULL, requests $INT NOT NULL,
  cache_hits $INT NOT NULL, incomplete $INT NOT NULL, prompt_tokens $INT NOT NULL, completion_tokens $INT NOT NULL, cost $INT NOT NULL,
  saved $INT NOT NULL, written_off $INT NOT NULL, PRIMARY KEY (account_id, day_at, model, credential_id)) $KEYED;

-- Derived. Removed records that are still in `postings`, in a page that ends with a later row, less carried credits that are in no page:
-- their number and the sum of their digests.
CREATE TABLE carried_pages (account_id $BIN PRIMARY KEY, records $INT NOT NULL, digest $INT NOT NULL) $KEYED;
