//! A blockchain with one token, as far as payments need one.

use std::collections::{BTreeMap, HashMap};

use tollgate_clock::Clock;
use tollgate_evm::{Address, Amount, Authorization, Nonce, TxHash};

use super::token::{CHAIN, Contract};

/// The default balance of every wallet: a thousand dollars.
const RICH: u64 = 1_000_000_000;

/// The state of a wallet's nonce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AuthorizationUse {
    /// Used in the transaction of this hash.
    Used(TxHash),
    /// Cancelled by its wallet, in the block of this number.
    Canceled(u64),
}

/// A transfer in a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mined {
    /// The transfer.
    pub transfer: Authorization,
    /// The hash of the transaction.
    pub transaction: TxHash,
    /// The number of its block.
    pub block: u64,
}

pub(super) struct Chain {
    clock: Clock,
    /// Seconds that its clock is ahead of the machine's.
    pub(super) ahead: u64,
    start: u64,
    pub(super) mined: Vec<Mined>,
    pub(super) uses: BTreeMap<(Address, Nonce), AuthorizationUse>,
    balances: HashMap<Address, u64>,
    count: u64,
    /// The contract at the token's address.
    pub(super) contract: Contract,
    /// The chain id that the node reports.
    pub(super) number: u64,
    /// Maximum block range of a log query at its node.
    pub(super) blocks_max: u64,
    /// Blocks by which its node lags.
    pub(super) lag: u64,
    /// Transactions in a block that have reverted.
    pub(super) reverted: Vec<TxHash>,
}

impl Chain {
    pub(super) fn new(clock: Clock) -> Chain {
        let mut chain = Chain {
            clock,
            ahead: 0,
            start: 0,
            mined: Vec::new(),
            uses: BTreeMap::new(),
            balances: HashMap::new(),
            count: 0,
            contract: Contract::USDC,
            number: CHAIN,
            blocks_max: 2_000,
            lag: 0,
            reverted: Vec::new(),
        };
        // The chain starts with existing blocks.
        chain.start = chain.time().saturating_sub(20_000);
        chain
    }

    /// The second of the last block.
    pub(super) fn time(&self) -> u64 {
        u64::try_from(self.clock.now().as_secs()).unwrap_or(0) + self.ahead
    }

    /// The number of the last block: one every two seconds.
    pub(super) fn block(&self) -> u64 {
        self.time().saturating_sub(self.start) / 2
    }

    /// The last block known to the node, and its second.
    pub(super) fn head(&self) -> (u64, u64) {
        match self.lag {
            0 => (self.block(), self.time()),
            lag => {
                let number = self.block().saturating_sub(lag);
                (number, self.time_of(number))
            }
        }
    }

    /// The block in which a wallet's nonce was used or cancelled.
    pub(super) fn block_of(&self, used: AuthorizationUse) -> Option<u64> {
        match used {
            AuthorizationUse::Canceled(block) => Some(block),
            AuthorizationUse::Used(hash) => {
                let mut mined = self.mined.iter();
                mined
                    .find(|mined| mined.transaction == hash)
                    .map(|mined| mined.block)
            }
        }
    }

    /// The second of a block.
    pub(super) fn time_of(&self, block: u64) -> u64 {
        self.start + 2 * block
    }

    pub(super) fn balance(&self, wallet: Address) -> u64 {
        self.balances.get(&wallet).copied().unwrap_or(RICH)
    }

    pub(super) fn set_balance(&mut self, wallet: Address, amount: u64) {
        self.balances.insert(wallet, amount);
    }

    pub(super) fn used(&self, transfer: &Authorization) -> Option<AuthorizationUse> {
        self.uses.get(&(transfer.from, transfer.nonce)).copied()
    }

    /// A new, unique hash.
    pub(super) fn new_hash(&mut self) -> TxHash {
        self.count += 1;
        let mut hash = [0xab; 32];
        hash[24..].copy_from_slice(&self.count.to_be_bytes());
        TxHash(hash)
    }

    /// Executes a transfer like the token; `false` when it reverts, and nothing has changed then.
    pub(super) fn execute(&mut self, transfer: &Authorization, transaction: TxHash) -> bool {
        let now = Amount::from(self.time());
        let value = transfer.value.to_u64();
        let left = value.and_then(|value| self.balance(transfer.from).checked_sub(value));
        let Some(left) = left.filter(|_| {
            now > transfer.valid_after
                && now < transfer.valid_before
                && self.used(transfer).is_none()
        }) else {
            return false;
        };
        self.set_balance(transfer.from, left);
        self.uses.insert(
            (transfer.from, transfer.nonce),
            AuthorizationUse::Used(transaction),
        );
        self.mined.push(Mined {
            transfer: transfer.clone(),
            transaction,
            block: self.block(),
        });
        true
    }

    pub(super) fn cancel(&mut self, wallet: Address, nonce: Nonce) {
        let block = self.block();
        self.uses
            .entry((wallet, nonce))
            .or_insert(AuthorizationUse::Canceled(block));
    }

    /// Removes the last transfer from its block, as a reorganisation does.
    pub(super) fn undo(&mut self) -> bool {
        let Some(mined) = self.mined.pop() else {
            return false;
        };
        let Mined { transfer, .. } = mined;
        self.uses.remove(&(transfer.from, transfer.nonce));
        let value = transfer.value.to_u64().unwrap_or(0);
        let balance = self.balance(transfer.from);
        self.set_balance(transfer.from, balance + value);
        true
    }
}
