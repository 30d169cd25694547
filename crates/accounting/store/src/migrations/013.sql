-- The audit log: what operators have changed, one row for each act. `number` is 1, 2, 3 ... within a node; `hash` covers the row and `prev`,
-- which is the hash of the node's row before it.
CREATE TABLE audit_log (
  node $INT NOT NULL, number $INT NOT NULL, at $INT NOT NULL, actor TEXT NOT NULL, action TEXT NOT NULL, subject TEXT, request TEXT NOT NULL,
  outcome TEXT NOT NULL, detail TEXT NOT NULL, prev $BIN NOT NULL, hash $BIN NOT NULL, PRIMARY KEY (node, number)) $KEYED;
CREATE INDEX audit_log_at ON audit_log (at, node, number);
