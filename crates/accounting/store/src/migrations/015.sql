-- Several nodes on one database. With a node of the first kind alone (`commit_id::has_allotments`) these tables stay empty.

-- The part of an account's credit that a node decides on, as of the node's last posting; `accounts.available` is what no node has. `recall`:
-- the number of the last recall that the node has answered, 9223372036854775807 when it has given everything back.
CREATE TABLE allotments (
  account_id $BIN NOT NULL, node_id $INT NOT NULL, available $INT NOT NULL DEFAULT 0, held $INT NOT NULL DEFAULT 0, at $INT NOT NULL DEFAULT 0,
  recall $INT NOT NULL, PRIMARY KEY (account_id, node_id), CHECK (available >= 0), CHECK (held >= 0)) $KEYED;
CREATE INDEX allotments_node ON allotments (node_id);

-- Accounts whose credit is scarce: nodes give back what is not held, and take for each hold exactly its amount. `number`: of the change that
-- announced it; 0 for an account whose credit is plentiful again.
CREATE TABLE recalls (account_id $BIN PRIMARY KEY, number $INT NOT NULL) $KEYED;

-- One row, `id` 1. Locked by each commit that writes what nodes share, so that those commits have an order: `number` is that of the last
-- change. A node that has read every change up to a number knows all changes that were committed before the next one.
CREATE TABLE cluster (id $INT PRIMARY KEY, number $INT NOT NULL) $KEYED;
INSERT INTO cluster (id, number) VALUES (1, 0);
ALTER TABLE changes ADD COLUMN number $INT;
CREATE INDEX changes_number ON changes (number);
