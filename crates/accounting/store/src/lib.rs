#![doc = include_str!("../README.md")]

mod acme;
mod allotment;
mod audit_log;
mod carry;
mod checkout;
mod codes;
mod commit;
mod commit_id;
mod debt;
mod engine;
pub mod entries;
mod error;
mod export;
mod file_lock;
#[doc(hidden)]
pub mod fuzz;
mod gauges;
mod handover;
mod idempotency;
mod journal;
mod load;
mod mandate;
mod node_settings;
mod oauth;
mod outage;
mod plan;
pub mod postgres;
mod queue;
mod reader;
mod reads;
mod recovery;
mod refusals;
pub mod retention;
mod rows;
mod schema;
mod seal;
mod sealing;
mod signin;
#[cfg(feature = "simulation")]
pub mod simulated;
mod spool;
pub mod sqlite;
mod statement;
mod store;
mod tables;
mod threads;
mod topup;
mod unit;
mod usage;
mod x402;

use tollgate_service::{GATEWAY, provided};

pub use acme::{AcmeAccountRow, AcmeCertificateRow, AcmeChallengesRow, AcmePart};
pub use allotment::{
    AllotmentPart, AllotmentRow, Answer, Budget, CapAllotmentRow, CapShares, KeyCap, NodeCap,
    TakeResult,
};
pub use audit_log::{AuditEvent, AuditLogQuery, AuditOutcome, AuditPosition, AuditRecord};
pub use carry::{CarryPart, OpeningBalances, OpeningNode, OpeningSum};
pub use checkout::{CheckoutPart, CheckoutRow};
pub use codes::{
    AccountStatus, AuthorizationState, CacheScope, ChangeKind, CheckoutState, CodePurpose, Contra,
    CredentialKind, Endpoint, EntryKind, LoginKind, MandateState, NoticeKind, PaymentStatus, Route,
    SubscriptionStatus, TopUpState,
};
pub use commit_id::has_allotments;
pub use debt::{Debt, DebtKey};
pub use error::{
    CommitError, Failure, FailureKind, LostCommits, OpenError, ReadError, Refusal, SubmitError,
};
pub use export::{EXPORT_SUFFIX, ExportError};
pub use gauges::{Gauges, Histogram};
pub use handover::{Answers, Handover, Successor, SuccessorLink, serve_predecessor};
pub use idempotency::{
    IdempotencyKey, IdempotencyPart, IdempotencyRow, KeptAnswer, KeyLimits, KeyQuota, KeyUse,
    first_token,
};
pub use load::{LoadError, Loads};
pub use mandate::{MandatePart, MandateRow, MandateSubject};
pub use node_settings::{OtherSettings, RecordedSettings};
pub use oauth::{ClientRow, CodeRow, GrantRow, OAuthPart, OAuthRefusal, PendingRow, RefreshRow};
pub use outage::{Outage, OutageTimes};
pub use plan::{PaymentRow, PlanPart, SubscriptionRow, plan_reference};
pub use reader::Reader;
pub use reads::Snapshot;
pub use refusals::{REFUSALS_MAX, RefusalRow};
pub use rows::{
    AccountRow, CredentialRow, LedgerLine, LoginRow, NewAccount, NewCredential, NewLogin, OpenHold,
    PriceRow, RootSecret, UsageFlags, UsageRecord, UsageRow, UsageTotal,
};
pub use sealing::Sealer;
pub use signin::{
    Draft, FailureRule, LoginCodeId, LoginCodeRow, Mailbox, MessageId, MessageRow, NewLoginCode,
    NewMessage, NewNotice, NewSession, NoticeRow, SendLimit, SessionRow, SigninPart,
};
pub use spool::SpooledUnit;
pub use statement::{DaySpending, Statement};
pub use store::{
    BatchRows, ChangeRow, Observer, OperationRows, Replayed, RetainedJournal, Store, Submit,
    commit, commit_blocking, commit_unless_cut_off, flush, reading,
};
pub use threads::{block_on, sleep};
pub use topup::{TopUpPart, TopUpRow, TopUpSubject};
pub use unit::{
    AccountChange, Admission, CredentialChange, Done, Effect, LoadedAccount, Part, Receipt,
    UnitOfWork,
};
pub use usage::{PageCursor, RequestPosition, RequestsQuery, UsageDay};
pub use x402::{AuthorizationKey, AuthorizationPart, AuthorizationRow};

provided! { GATEWAY => [dyn Store]; }
