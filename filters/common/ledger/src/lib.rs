//! The ledger: accounts, holds and settlements.
//!
//! Credit decisions are made in memory, with integers, under a lock held for nanoseconds, and made durable through the store's queue while
//! the upstream already works. Before sending a response's first byte the caller waits for [`Hold::durable`], before its last for the
//! [`Settlement`].
//!
//! Invariants after every call, and after a crash at any write:
//!
//! 1. `available >= -credit_limit`: a hold never exceeds the available credit.
//! 2. A hold is resolved exactly once: settled, released or expired.
//! 3. A settlement charges the cost of the usage: to its hold, then to the available balance, never more; the rest of the hold is freed in
//!    the same commit.
//! 4. The entries add up to both fields of every account. Entries are appended, never edited.
//!
//! No HTTP, no clock: times are passed in.

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
pub use settlement::{AttachedPart, SettleError, Settled, Settlement};
