-- The most that a take has needed for which a recalled account or cap had too little, and when: of so much it has to have plenty before the recall
-- ends. 0 in a row of a release that does not know them.
ALTER TABLE recalls ADD COLUMN need $INT NOT NULL DEFAULT 0;
ALTER TABLE recalls ADD COLUMN short_at $INT NOT NULL DEFAULT 0;
ALTER TABLE cap_recalls ADD COLUMN need $INT NOT NULL DEFAULT 0;
ALTER TABLE cap_recalls ADD COLUMN short_at $INT NOT NULL DEFAULT 0;
