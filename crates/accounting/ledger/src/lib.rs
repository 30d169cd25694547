#![doc = include_str!("../README.md")]

mod account;
mod accounts;
mod adopted;
mod allotment;
mod allotment_counters;
mod allotment_state;
pub mod audit;
mod balances;
mod booking;
mod caps;
mod charge;
mod charging;
mod credit;
mod debts;
mod decision;
mod handover;
mod hold;
mod hold_request;
mod loading;
mod observer;
mod placing;
mod prices;
mod recovery;
mod resident;
mod returning;
mod settlement;
mod settling;
mod spending;
mod spooled;
mod totals;
mod units;

use tollgate_service::{GATEWAY, provided};

pub use account::Balance;
pub use accounts::{Accounts, Ledger};
pub use allotment_counters::AllotmentCounters;
pub use caps::{CapHold, CountedCharge};
pub use charge::{Charge, ChargeError, StartError, Started};
pub use credit::{Credit, CreditError, Credited};
pub use decision::Decision;
pub use hold::Hold;
pub use hold_request::{HoldError, HoldRequest, Settle};
pub use prices::{PricesError, record_prices};
pub use resident::{BalanceError, LoadError};
pub use settlement::{AttachedPart, SettleError, Settled, Settlement};
pub use spending::CapReached;
pub use totals::Totals;

provided! { GATEWAY => [Ledger]; }
