#![doc = include_str!("../README.md")]

mod account;
mod accounts;
mod adopted;
pub mod audit;
mod credit;
mod handover;
mod hold;
mod ledger;
mod prices;
mod settlement;
mod totals;
mod units;

use tollgate_service::{GATEWAY, provided};

pub use account::Balance;
pub use credit::{Credit, CreditError, Credited};
pub use hold::{Hold, HoldError, HoldRequest, Settle};
pub use ledger::{Charge, ChargeError, Ledger, StartError, Started};
pub use prices::{PricesError, record_prices};
pub use settlement::{AttachedPart, SettleError, Settled, Settlement};
pub use totals::Totals;

provided! { GATEWAY => [Ledger]; }
