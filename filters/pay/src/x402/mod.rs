//! x402, version 2, scheme `exact` over EIP-3009: the buyer's wallet signs a transfer, and any holder of the signature can submit it to the
//! chain, once.

mod answer;
mod bring;
mod caller;
pub mod chain;
mod check;
mod confirm;
mod counters;
mod decide;
mod desk;
mod extensions;
mod facilitator;
mod flight;
mod health;
mod judge;
mod look;
mod offer;
mod office;
mod patience;
mod payment;
mod reason;
pub(crate) mod route;
mod rows;
mod sealing;
mod unclear;

pub use answer::{Settled, Verified, settled, verified};
pub use caller::{Bearer, CallerError, HttpFacilitator, HttpNode};
pub use check::{Doubt, check};
pub use counters::X402Event;
pub use decide::{Act, Asker, Known, State, decide};
pub use desk::{CONFIRM, Desk, Parts, Told, WAIT, Wish};
pub use facilitator::{Facilitator, Node, Operation, Said, Silence, question, supports};
pub use judge::{OnChain, Outcome, judge};
pub use look::{Sight, Wanted, look};
pub use offer::{Offer, Terms};
pub use office::{
    CloseError, Verdict, action as payment_action, close as close_payment, name as payment_name,
};
pub use payment::{Payment, PaymentError};
pub use reason::{Reason, reason};
