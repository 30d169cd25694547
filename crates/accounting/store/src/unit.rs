//! Units of work: atomic sets of changes.

use std::sync::{Arc, OnceLock};

use smallvec::{SmallVec, smallvec};
use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, CredentialId, Micros, OperationId, SpendingCap};

use crate::acme::AcmePart;
use crate::allotment::{AllotmentPart, TakeResult};
use crate::audit_log::AuditEvent;
use crate::carry::CarryPart;
use crate::checkout::CheckoutPart;
use crate::codes::{AccountStatus, CacheScope, ChangeKind};
use crate::entries::LedgerPart;
use crate::error::CommitError;
use crate::idempotency::IdempotencyPart;
use crate::mandate::MandatePart;
use crate::oauth::OAuthPart;
use crate::plan::PlanPart;
use crate::refusals::RefusalRow;
use crate::rows::{NewAccount, NewCredential, NewLogin, PriceRow};
use crate::signin::SigninPart;
use crate::topup::TopUpPart;
use crate::x402::AuthorizationPart;

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Part {
    /// Creates an account with a zero balance.
    CreateAccount(Box<NewAccount>),
    /// Changes an account's settings.
    ChangeAccount(Box<AccountChange>),
    /// Stores a credential.
    InsertCredential(Box<NewCredential>),
    /// Revokes a credential. Revoking it again changes nothing and is no error.
    RevokeCredential {
        /// Which.
        id: CredentialId,
        /// When it is revoked.
        at: Timestamp,
    },
    /// Changes what an owner may change of an API key.
    ChangeCredential(Box<CredentialChange>),
    /// Stores a login address of an account.
    InsertLogin(Box<NewLogin>),
    /// Stores a version of a price. Repeating it with the same amounts changes nothing.
    RecordPrice(Box<PriceRow>),
    /// Changes an idempotency key.
    Idempotency(Box<IdempotencyPart>),
    /// Changes clients, grants, codes or refresh tokens.
    OAuth(Box<OAuthPart>),
    /// Changes a checkout.
    Checkout(Box<CheckoutPart>),
    /// Changes subscriptions or payments.
    Plan(Box<PlanPart>),
    /// Changes a signed transfer.
    Authorization(Box<AuthorizationPart>),
    /// Changes a credit purchase.
    TopUp(Box<TopUpPart>),
    /// Changes a mandate.
    Mandate(Box<MandatePart>),
    /// Changes sessions, one-time codes, their counters or messages.
    Signin(Box<SigninPart>),
    /// Changes an account at a certificate authority, or a certificate.
    Acme(Box<AcmePart>),
    /// Adds refused requests, and deletes what is beyond the number that an account keeps.
    RecordRefusals(Vec<RefusalRow>),
    /// Adds a record to the audit log. In a unit that books a reference again, its outcome becomes that of a repetition.
    Audit(Box<AuditEvent>),
    /// Announces to the nodes of a cluster that cached answers are removed. Stores nothing but the change.
    PurgeCache {
        /// `Cache`, `CacheOfModel` or `CacheEntry`.
        kind: ChangeKind,
        /// What the kind refers to.
        subject: [u8; 16],
        /// When.
        at: Timestamp,
    },
    /// Removes what is personal of an account that is being deleted: addresses, sessions, names of keys, refused requests, and the data of
    /// buyers. Its rows of money stay. The unit closes the account and ends its credentials by parts of their own.
    EraseAccount(AccountId),
    /// Removes from the feed of changes what every node has read.
    PruneChanges,
    /// Moves credit or a part of a key's cap between what nodes share and this node, counts charges beyond a cap, or answers all recalls. Only for a
    /// node with allotments.
    Allotment(AllotmentPart),
    /// Removes exported commits from the journal.
    Carry(Box<CarryPart>),
    /// Writes ledger entries.
    Ledger(LedgerPart),
    /// Reads an account for a ledger that has to keep it in memory: [`Receipt::loaded`]. Writes nothing. Alone in its unit.
    Load(AccountId),
}

/// New values for some fields of an account; `None` leaves a field as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountChange {
    /// The account.
    pub id: AccountId,
    /// Whether it may spend.
    pub status: Option<AccountStatus>,
    /// The class whose limits apply.
    pub class: Option<Arc<str>>,
    /// The completion cache scope.
    pub cache_scope: Option<CacheScope>,
    /// When it is changed.
    pub at: Timestamp,
}

/// New values of an API key that is neither revoked nor expired: all of them, also those that stay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CredentialChange {
    /// The key.
    pub id: CredentialId,
    /// Its account: a key of another one is not found.
    pub account: AccountId,
    /// The version that the change is based on: [`crate::Refusal::CredentialConflict`] after a concurrent change.
    pub version: i64,
    /// Its name.
    pub label: Arc<str>,
    /// The only permitted models; `None` for all.
    pub models: Option<Arc<[Arc<str>]>>,
    /// Its spending cap; `None` for no cap.
    pub spending_cap: Option<SpendingCap>,
    /// What already counts against the cap. Not stored: for those who count in memory.
    pub spent: Micros,
    /// When it expires; `None` when it does not.
    pub expires_at: Option<Timestamp>,
    /// When it is changed.
    pub at: Timestamp,
}

/// Admission of a unit when the writer falls behind (load shedding).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Starts something: refused once three quarters of the queue are in use, while the disk is low, and while the database does not answer.
    Normal,
    /// Best effort, without a waiting caller: refused like `Normal`, but not during an outage, and delayed briefly so that several are written
    /// together.
    BestEffort,
    /// Finishes something already started: always accepted. There are never more of these than started operations.
    Always,
}

/// Parts that become durable together or not at all.
#[derive(Clone, Debug)]
pub struct UnitOfWork {
    pub(crate) parts: SmallVec<[Part; 1]>,
    pub(crate) admission: Admission,
    /// Of a unit whose caller may be notified before it is committed.
    pub(crate) acceptance: Option<Arc<Acceptance>>,
}

/// Whether the ledger part of a unit was accepted for the spool, or the store has refused the unit: whichever is decided first.
#[derive(Debug, Default)]
pub(crate) struct Acceptance(OnceLock<bool>);

impl Acceptance {
    /// Accepts the ledger part; `false` where the unit is refused.
    pub(crate) fn accept(&self) -> bool {
        *self.0.get_or_init(|| true)
    }

    /// Refuses the unit; `false` where its ledger part was accepted.
    pub(crate) fn refuse(&self) -> bool {
        !*self.0.get_or_init(|| false)
    }
}

impl UnitOfWork {
    /// A unit of one part.
    pub fn of(part: Part, admission: Admission) -> UnitOfWork {
        UnitOfWork {
            parts: smallvec![part],
            admission,
            acceptance: None,
        }
    }

    /// A unit of several parts, applied in order. An empty unit is committed with the units before it, which makes it a barrier.
    pub fn of_all(parts: impl IntoIterator<Item = Part>, admission: Admission) -> UnitOfWork {
        UnitOfWork {
            parts: parts.into_iter().collect(),
            admission,
            acceptance: None,
        }
    }

    /// The same unit with one more part, the last.
    #[must_use]
    pub fn with(mut self, part: Part) -> UnitOfWork {
        self.parts.push(part);
        self
    }

    /// The same unit, whose ledger part was accepted: where the store refuses another part, it is committed without that.
    #[must_use]
    pub fn accepted(mut self) -> UnitOfWork {
        let acceptance = || Arc::new(Acceptance(OnceLock::from(true)));
        self.acceptance = (self.parts.len() > 1).then(acceptance);
        self
    }

    /// Whether the store has refused it: its caller is notified after the commit.
    pub(crate) fn is_refused(&self) -> bool {
        let acceptance = self.acceptance.as_ref();
        acceptance.is_some_and(|acceptance| acceptance.0.get() == Some(&false))
    }

    /// The parts, in order.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }
}

/// The effect of a part when its unit was committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The part was written.
    Applied,
    /// The same reference was booked before with the same kind and amount; nothing was written.
    Repeated {
        /// The operation it was booked under.
        operation: OperationId,
    },
}

/// The result of a committed unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Receipt {
    /// The operation that booked the unit's reference before, if any.
    pub repeated: Option<OperationId>,
    /// What the unit's take has got, if it has one.
    pub taken: Option<TakeResult>,
    /// The account that the unit has loaded, if it exists.
    pub loaded: Option<LoadedAccount>,
}

/// An account after every unit that was queued before its load, and after every part of which the observers have been notified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadedAccount {
    /// Available to this node: for one of several nodes what it has of the account.
    pub available: Micros,
    /// The open holds of this node.
    pub held: Micros,
    /// How far below zero the account may go. For one of several nodes that is said of its shared balance.
    pub credit_limit: Micros,
    /// For one of several nodes: what the account has beyond this node, held too, as of the last posting of the others.
    pub elsewhere: Micros,
    /// For one of several nodes: the number of the recall in force, 0 for none.
    pub recall: i64,
    /// Whether the account has ever paid.
    pub has_paid: bool,
}

/// Called once, on a thread of the store, after the unit is durable or will never be; durable is also what ends an operation and is in the
/// spool. Must not block.
pub type Done = Box<dyn FnOnce(Result<Receipt, CommitError>) + Send>;
