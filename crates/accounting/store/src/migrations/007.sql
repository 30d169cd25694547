-- The credits of a returned payment that were held or spent, taken back when they become free. `owed` is absent while the payment is kept, and
-- for one that a release without this column returned. `looks` and `look_at` as with `top_ups`.
ALTER TABLE payments ADD COLUMN owed $INT;
ALTER TABLE payments ADD COLUMN looks $INT NOT NULL DEFAULT 0;
ALTER TABLE payments ADD COLUMN look_at $INT;
CREATE INDEX payments_look ON payments (look_at) WHERE look_at IS NOT NULL;
