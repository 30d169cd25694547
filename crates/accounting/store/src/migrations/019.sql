-- Nodes of a shared database whose process has a spool: for `grace` microseconds after the end of its lease it may end answers, cut off from the
-- database, so that others recover it later. `epoch`: the run that has it.
CREATE TABLE spools (node_id $INT PRIMARY KEY, epoch $INT NOT NULL, grace $INT NOT NULL) $KEYED;
