-- What one transaction pays for is looked up before a payment counts for it.
CREATE INDEX authorizations_transaction ON authorizations (network, transaction_hash) WHERE transaction_hash IS NOT NULL;
-- Signed transfers whose outcome nobody has proved. 6: sent and refused, on the facilitator's word.
CREATE INDEX authorizations_unresolved ON authorizations (created_at) WHERE state IN (1, 2, 6);
