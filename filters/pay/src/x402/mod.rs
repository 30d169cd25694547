//! x402, version 2, scheme `exact` over EIP-3009: the buyer's wallet signs a transfer, and any holder of the signature can submit it to the
//! chain, once.

mod answer;
pub mod chain;
mod chain_lookup;
mod check;
mod context;
mod counters;
mod decide;
pub(crate) mod endpoint;
mod extensions;
mod facilitator;
mod grant;
mod health;
mod http_client;
mod manual_resolution;
mod offer;
mod payment;
mod payment_outcome;
mod processor;
mod purchase;
mod reason;
mod reconcile;
mod record;
mod response;
mod rows;
mod settle;
mod signature_limit;
mod single_flight;
mod submit;
mod token;
mod transfer;
mod verify;

pub use answer::{Settled, Verified, settled, verified};
pub use chain_lookup::{AuthorizationLookup, OnChainStatus, look_up};
pub use check::{CheckError, check};
pub use context::X402Deps;
pub use counters::X402Event;
pub use decide::{BuyerState, Decision, StoredPayment, decide};
pub use facilitator::{CallError, Facilitator, Node, Operation, Response, request_body, supports};
pub use http_client::{Bearer, FixedBearer, HttpClientError, HttpFacilitator, HttpNode};
pub use manual_resolution::{
    CloseError, Resolution, action as payment_action, close as close_payment,
    reference as payment_reference,
};
pub use offer::{DECIMALS, Offer, Terms};
pub use payment::{MemberFault, Payment, PaymentError};
pub use payment_outcome::{ChainEvidence, PaymentOutcome, decide_outcome};
pub use processor::{CONFIRM, Processor, WAIT};
pub use purchase::{PurchaseOutcome, PurchaseRequest, Unreadable};
pub use reason::{Reason, is_fault_of_facilitator, reason};
pub use token::{TokenCheck, TokenError, read_token};
