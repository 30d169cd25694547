#![doc = include_str!("../README.md")]

mod account;
mod accounts;
pub mod audit;
mod credit;
mod hold;
mod ledger;
mod prices;
mod settlement;

use tollgate_service::{GATEWAY, provided};

pub use account::Balance;
pub use credit::{Credit, CreditError, Credited};
pub use hold::{Hold, HoldError, HoldRequest, Settle};
pub use ledger::{Charge, ChargeError, Ledger, StartError, Started, Totals};
pub use prices::{PricesError, record_prices};
pub use settlement::{AttachedPart, SettleError, Settled, Settlement};

provided! { GATEWAY => [Ledger]; }
