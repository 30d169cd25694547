#![doc = include_str!("../README.md")]

mod amount;
mod authorization;
mod bytes;
mod signature;

pub use amount::{Amount, AmountError};
pub use authorization::{Authorization, Domain, chain_id};
pub use bytes::{Address, HexError, Nonce, TxHash, Word, WrittenAddress};
pub use signature::Signature;
