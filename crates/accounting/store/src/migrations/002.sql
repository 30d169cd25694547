-- Over which time the cap of a credential counts: absent for all time, 1 for each calendar month (UTC).
ALTER TABLE credentials ADD COLUMN cap_period $INT;
