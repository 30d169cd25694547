-- Notices to the owners of accounts, by mail. They are not in `outbox`, whose rows an earlier release reads as one-time codes: it leaves these to the
-- nodes that know them. What a notice says is read when it is sent, from the login and the credential that it names, so that it has no personal data.
CREATE TABLE notices (
  id $BIN PRIMARY KEY, kind $INT NOT NULL, login_id $BIN NOT NULL, credential_id $BIN NOT NULL,
  tries $INT NOT NULL DEFAULT 0, created_at $INT NOT NULL, next_at $INT NOT NULL, expires_at $INT NOT NULL) $KEYED;
CREATE INDEX notices_next ON notices (next_at);
