-- Claimed keys, few of all: those of a run that has ended are freed by its successor or by who recovers it.
CREATE INDEX completion_keys_claims ON completion_keys (token) WHERE state = 0;
