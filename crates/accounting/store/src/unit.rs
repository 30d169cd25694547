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
    /// Revokes a credential. No effect and no error for a revoked credential.
    RevokeCredential {
        /// The credential.
        id: CredentialId,
        /// Time of revocation.
        at: Timestamp,
    },
    /// Changes the fields of an API key that its owner may change.
    ChangeCredential(Box<CredentialChange>),
    /// Stores a login address of an account.
    InsertLogin(Box<NewLogin>),
    /// Stores a version of a price. A repetition with equal amounts changes nothing.
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
    /// Adds refused requests, and deletes requests beyond the number that an account keeps.
    RecordRefusals(Vec<RefusalRow>),
    /// Adds a record to the audit log. In a unit that books a reference again, the record's outcome becomes the outcome of a repetition.
    Audit(Box<AuditEvent>),
    /// Announces the removal of cached answers to the nodes of a cluster. Stores only the change.
    PurgeCache {
        /// `Cache`, `CacheOfModel` or `CacheEntry`.
        kind: ChangeKind,
        /// The subject of the kind.
        subject: [u8; 16],
        /// When.
        at: Timestamp,
    },
    /// Removes the personal data of an account that is being deleted: addresses, sessions, names of keys, refused requests, and the data of
    /// buyers. Ledger rows stay. Other parts of the unit close the account and end its credentials.
    EraseAccount(AccountId),
    /// Removes the changes that every node has read from the feed of changes.
    PruneChanges,
    /// Moves credit or a part of a key's cap between the nodes' shared pool and this node, counts charges beyond a cap, or answers all
    /// recalls. Only for a node with allotments.
    Allotment(AllotmentPart),
    /// Removes exported commits from the journal.
    Carry(Box<CarryPart>),
    /// Writes ledger entries.
    Ledger(LedgerPart),
    /// Reads an account for a ledger that has to keep the account in memory: [`Receipt::loaded`]. Writes nothing. The only part of its
    /// unit.
    Load(AccountId),
}

/// New values for some fields of an account; `None` leaves a field unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountChange {
    /// The account.
    pub id: AccountId,
    /// Whether the account may spend.
    pub status: Option<AccountStatus>,
    /// The class whose limits apply.
    pub class: Option<Arc<str>>,
    /// The completion cache scope.
    pub cache_scope: Option<CacheScope>,
    /// Time of the change.
    pub at: Timestamp,
}

/// New values of an API key that is neither revoked nor expired: every field, also unchanged fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CredentialChange {
    /// The key.
    pub id: CredentialId,
    /// The key's account: a key of another account is not found.
    pub account: AccountId,
    /// The version that the change is based on: [`crate::Refusal::CredentialConflict`] after a concurrent change.
    pub version: i64,
    /// The key's name.
    pub label: Arc<str>,
    /// The only permitted models; `None` for all models.
    pub models: Option<Arc<[Arc<str>]>>,
    /// The key's spending cap; `None` for no cap.
    pub spending_cap: Option<SpendingCap>,
    /// The amount that already counts against the cap. Not stored: for counters in memory.
    pub spent: Micros,
    /// The key's expiry; `None` for no expiry.
    pub expires_at: Option<Timestamp>,
    /// Time of the change.
    pub at: Timestamp,
}

/// Admission of a unit when the writer falls behind (load shedding).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Starts something: refused once three quarters of the queue are in use, while the disk is low, and while the database does not answer.
    Normal,
    /// Best effort, without a waiting caller. Refused like `Normal`, but not during an outage. Delayed briefly, for a group commit.
    BestEffort,
    /// Finishes a started operation: always accepted. There are never more `Always` units than started operations.
    Always,
}

/// Parts that become durable together or not at all.
#[derive(Clone, Debug)]
pub struct UnitOfWork {
    pub(crate) parts: SmallVec<[Part; 1]>,
    pub(crate) admission: Admission,
    /// Of a unit whose caller may be notified before the commit.
    pub(crate) acceptance: Option<Arc<Acceptance>>,
}

/// Whether the ledger part of a unit was accepted for the spool, or the store has refused the unit. The first decision counts.
#[derive(Debug, Default)]
pub(crate) struct Acceptance(OnceLock<bool>);

impl Acceptance {
    /// Accepts the ledger part; `false` where the unit is refused.
    pub(crate) fn accept(&self) -> bool {
        *self.0.get_or_init(|| true)
    }

    /// Refuses the unit; `false` after the acceptance of its ledger part.
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

    /// A unit of several parts, applied in order. An empty unit is committed with the units before it: a barrier.
    pub fn of_all(parts: impl IntoIterator<Item = Part>, admission: Admission) -> UnitOfWork {
        UnitOfWork {
            parts: parts.into_iter().collect(),
            admission,
            acceptance: None,
        }
    }

    /// Adds a last part.
    #[must_use]
    pub fn with(mut self, part: Part) -> UnitOfWork {
        self.parts.push(part);
        self
    }

    /// Marks the ledger part as accepted. When the store refuses another part, the unit is committed without the other part.
    #[must_use]
    pub fn accepted(mut self) -> UnitOfWork {
        let acceptance = || Arc::new(Acceptance(OnceLock::from(true)));
        self.acceptance = (self.parts.len() > 1).then(acceptance);
        self
    }

    /// Whether the store has refused the unit: the caller is notified after the commit.
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
    /// The reference was booked before with an equal kind and amount; nothing was written.
    Repeated {
        /// The operation of the earlier booking.
        operation: OperationId,
    },
}

/// The result of a committed unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Receipt {
    /// The operation that booked the unit's reference before, if any.
    pub repeated: Option<OperationId>,
    /// The result of the unit's take, if the unit has a take.
    pub taken: Option<TakeResult>,
    /// The account loaded by the unit, if the account exists.
    pub loaded: Option<LoadedAccount>,
}

/// An account after every unit queued before its load, and after every part of which the observers have been notified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadedAccount {
    /// Available to the node. For a node of a cluster: the node's allotment.
    pub available: Micros,
    /// The open holds of the node.
    pub held: Micros,
    /// How far below zero the account may go. In a cluster the limit applies to the shared balance.
    pub credit_limit: Micros,
    /// In a cluster: the account's credit beyond the node, including held credit, as of the other nodes' last posting.
    pub elsewhere: Micros,
    /// In a cluster: the number of the recall in force, 0 for no recall.
    pub recall: i64,
    /// Whether the account has ever paid.
    pub has_paid: bool,
}

/// Called once, on a thread of the store, when the unit is durable or lost. A unit that ends an operation is also durable in the spool.
/// Must not block.
pub type Done = Box<dyn FnOnce(Result<Receipt, CommitError>) + Send>;
