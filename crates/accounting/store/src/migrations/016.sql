-- The responses to challenges of certificate authorities (ACME), sealed, while an order is under way: an authority's request can reach any
-- gateway of the database. `id` as in `acme_certificates`; of no use after `expires_at`.
CREATE TABLE acme_challenges (id $BIN PRIMARY KEY, sealed $BIN NOT NULL, expires_at $INT NOT NULL) $KEYED;
