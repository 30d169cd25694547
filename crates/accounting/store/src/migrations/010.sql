-- Keys can be changed: `version` counts the changes, and a change names the version that it has seen.
ALTER TABLE credentials ADD COLUMN version $INT NOT NULL DEFAULT 0;
