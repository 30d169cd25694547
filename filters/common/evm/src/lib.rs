//! Values of EVM chains in their wire format, and signed token transfers: addresses (EIP-55), nonces, transaction hashes, amounts, ABI words,
//! and the EIP-712 digest of an EIP-3009 authorization with the recovery of its signer.
//!
//! The payment filter and the stand-ins share this code, so neither finds an error of the other in it: the tests here compare it with
//! published values (the domain separators of deployed tokens, and a signature made by a library of the protocol).

mod amount;
mod authorization;
mod bytes;
mod signature;

pub use amount::{Amount, AmountError};
pub use authorization::{Authorization, Domain, chain_id};
pub use bytes::{Address, HexError, Nonce, TxHash, Word, WrittenAddress};
pub use signature::Signature;
