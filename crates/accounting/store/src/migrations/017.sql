-- Spending caps of keys on several nodes. With a node of the first kind alone (`commit_id::has_allotments`) these tables stay empty.

-- What a node may spend of a key's cap in a period: charges and open reservations together. `month`: twelve times the year, and 0 to 11; 0 for
-- a cap of all time. `spent`: the charges as of the node's last posting, so that `granted - spent` is what it has. The row of node 0 is what was
-- spent without a row of its own. `recall` as in `allotments`.
CREATE TABLE cap_allotments (
  credential_id $BIN NOT NULL, month $INT NOT NULL, node_id $INT NOT NULL, granted $INT NOT NULL, spent $INT NOT NULL, recall $INT NOT NULL,
  PRIMARY KEY (credential_id, month, node_id)) $KEYED;
CREATE INDEX cap_allotments_node ON cap_allotments (node_id);

-- As `recalls`, for the cap of a key in a period.
CREATE TABLE cap_recalls (credential_id $BIN NOT NULL, month $INT NOT NULL, number $INT NOT NULL, PRIMARY KEY (credential_id, month)) $KEYED;
