//! Accounts, holds and settlements.
//!
//! Credit is decided on in memory, with integers, under a lock of nanoseconds, and made durable through the store's queue while the
//! upstream already works. Whoever lets bytes out waits first: for [`Hold::durable`] before the first byte, for the
//! [`Settlement`] before the last.
//!
//! What holds after every call, and after a crash at any write:
//!
//! 1. `available >= -credit_limit`: credit that is not there cannot be promised.
//! 2. A hold ends exactly once: settled, released or expired.
//! 3. A settlement takes what the usage cost: from its hold, then from what is available, never more; the rest of the hold is free in
//!    the same commit.
//! 4. The entries add up to both fields of every account. Entries are appended, never edited.
//!
//! No HTTP, no clock: times are Unix microseconds, handed in.

mod account;
mod accounts;
pub mod audit;
mod credit;
mod hold;
mod ledger;
mod prices;
mod settlement;

pub use account::Balance;
pub use credit::{Credit, CreditError, Credited};
pub use hold::{Hold, HoldError, HoldRequest, Settle};
pub use ledger::{Charge, ChargeError, Ledger, StartError, Started, Totals};
pub use prices::{PricesError, record_prices};
pub use settlement::{Beside, SettleError, Settled, Settlement};
