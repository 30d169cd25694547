//! x402, version 2, scheme `exact` over EIP-3009: the buyer's wallet signs a transfer, and whoever has the signature may send it to the
//! chain, once.

mod amount;
mod answer;
pub mod chain;
mod check;
mod decide;
mod hex;
mod offer;
mod payment;
mod reason;

pub use amount::{Amount, AmountError};
pub use answer::{Settled, Verified, settled, verified};
pub use check::{Doubt, check};
pub use decide::{Act, Asker, Known, State, decide};
pub use hex::{Address, HexError, Nonce, Signature, WrittenAddress};
pub use offer::{Offer, Terms};
pub use payment::{Authorization, Payment, PaymentError};
pub use reason::{Reason, reason};
