//! The token and its chain, and the merchant of the demo.

use tollgate_evm::Address;

/// The chain used for settlement.
pub const NETWORK: &str = "eip155:8453";

/// Its chain id.
pub(super) const CHAIN: u64 = 8453;

/// The payee where the demo is the merchant. Its private key is unknown.
pub const MERCHANT: &str = "0x90F79bf6EB2c4f870365E785982E1f101E93b906";

/// The address [`MERCHANT`].
pub fn merchant() -> Address {
    MERCHANT.parse().expect("an address")
}

/// The token.
pub(super) struct Token {
    pub(super) asset: Address,
    pub(super) name: &'static str,
    pub(super) version: &'static str,
}

impl Default for Token {
    fn default() -> Token {
        Token {
            // USDC on Base.
            asset: "0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913"
                .parse()
                .expect("an address"),
            name: "USD Coin",
            version: "2",
        }
    }
}

/// The contract at the token's address, as a program reads it from the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contract {
    /// A token: `decimals()` and `DOMAIN_SEPARATOR()`, each of which reverts where there is none.
    Token {
        /// Its decimal places.
        decimals: Option<u8>,
        /// Its EIP-712 domain separator.
        domain_separator: Option<&'static str>,
    },
    /// An address without code.
    Nothing,
}

impl Contract {
    /// USDC on Base, with the domain separator of the deployed contract.
    pub const USDC: Contract = Contract::Token {
        decimals: Some(6),
        domain_separator: Some(
            "0x02fa7265e7c5d81118673727957699e4d68f74cd74b7db77da710fe8a2c7834f",
        ),
    };
}
