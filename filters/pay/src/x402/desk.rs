//! Where payments are brought: each is taken once, whatever a network, a facilitator or a crash does to it.
//!
//! What holds after every call, and after a crash at any write:
//!
//! 1. Nothing is sent to the chain that is not stored as sent first, and an account has at most one payment that is.
//! 2. The plan is given in the same unit of work in which a payment becomes settled, and a payment becomes that once.
//! 3. An offer is shown only while no payment of the account can still move money.
//! 4. What became of a payment is never guessed: with a node it is settled or dead when a chain lookup proves it, and open until then,
//!    whatever the facilitator says; without one the facilitator is believed.
//! 5. A transaction pays for one payment, or for as many as the chain has transfers for in it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Notify;
use tollgate_filter::Clock;
use tollgate_money::AccountId;
use tollgate_purchase::PurchaseTasks;
use tollgate_purchase::idempotency::{Answer, IdempotencyKeys};
use tollgate_purchase::plan::{PlanError, PlanState, Plans};
use tollgate_purchase::wire::{CommerceSubscription, Product, Subscription};
use tollgate_store::{
    AuthorizationKey, AuthorizationPart, AuthorizationRow, CommitError, Part, ReadError, Store,
    SubscriptionRow, reading,
};

use super::counters::Counters;
use super::decide::{Act, Asker, decide};
use super::facilitator::{Facilitator, Node, Operation, Silence, supports};
use super::flight::{Boarded, Flights, Mark, landed};
use super::health::Health;
use super::offer::Terms;
use super::patience::Patience;
use super::payment::Payment;
use super::rows;
use super::sealing::Sealer;

/// How long whoever brings a payment waits for its end, usually. It goes on without them.
pub const WAIT: Duration = Duration::from_secs(25);

/// How long the chain is read for a success that the facilitator reports, before its buyer is told to come again: two or three blocks.
pub const CONFIRM: Duration = Duration::from_secs(6);

/// How often the facilitator is asked what it settles: twice within the time that a good answer counts.
const HEALTH: Duration = Duration::from_secs(12);

/// How often the desk asks the store which payments are due.
const EVERY: Duration = Duration::from_secs(1);

/// Payments looked at at once.
const AT_ONCE: usize = 8;

/// How often payments that were never sent and never will be are forgotten, in turns of the desk.
const FORGET_TURNS: u32 = 600;

/// What a desk works with.
pub struct Parts {
    /// Where payments are kept.
    pub store: Arc<dyn Store>,
    /// What accounts have of the plan.
    pub plans: Plans,
    /// Names of requests.
    pub once: IdempotencyKeys,
    /// Who sends transfers to the chain.
    pub facilitator: Arc<dyn Facilitator>,
    /// A node of the chain: with one, what the chain says ends a payment; without one, the facilitator is believed, and a payment that it
    /// cannot explain stays unclear.
    pub node: Option<Arc<dyn Node>>,
    /// The price, in what, and to whom.
    pub terms: Terms,
    /// What is sold, as answers tell it.
    pub product: Product,
    /// Time.
    pub clock: Clock,
    /// How long whoever brings a payment waits for its end ([`WAIT`]).
    pub wait: Duration,
    /// How long the chain is read for a success that the facilitator reports ([`CONFIRM`]).
    pub confirm: Duration,
    /// Where the work runs, so that a buyer who leaves does not cut it off.
    pub runtime: PurchaseTasks,
}

/// The desk. Cheap to clone.
#[derive(Clone)]
pub struct Desk {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub(super) parts: Parts,
    pub(super) health: Health,
    pub(super) sealer: Sealer,
    pub(super) patience: Patience,
    pub(super) counters: Counters,
    /// Rings when a call of a buyer has closed the desk: whether it has to stay closed is asked at once.
    doubt: Notify,
    flights: Flights<Told>,
}

/// What somebody brings.
#[derive(Clone, Debug)]
pub struct Wish {
    /// Who gets the plan: the owner of the credential.
    pub account: AccountId,
    /// The payment, if there is one.
    pub payment: Option<Payment>,
    /// What the buyer calls the request, if it has names.
    pub names: Vec<Arc<str>>,
}

/// What they are told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// Nothing is paid: an offer may be shown.
    Offer,
    /// The payment is no good, and nothing has moved or will: an offer may be shown.
    Refused {
        /// Why, in a word of the protocol.
        why: String,
        /// The value of `PAYMENT-RESPONSE` for a payment that was tried.
        failure: Option<String>,
        /// Whether it is certain that nothing has moved. Otherwise it was submitted, and the facilitator says so.
        is_proven: bool,
    },
    /// The facilitator refused the payment after it was submitted, and the chain does not rule out yet that it settles: no offer.
    NotFinal {
        /// Why it was refused, in a word of the protocol.
        why: String,
        /// Seconds in which it can still settle.
        secs: u64,
    },
    /// The account has the plan.
    Done(Answer),
    /// The payment was brought by another account before.
    UsedByAnother,
    /// A name of the request stands for another one.
    OtherRequest,
    /// A request of the same name is under way.
    UnderWay,
    /// Money may be moving.
    Processing,
    /// The facilitator does not answer; nothing has moved.
    Unavailable,
    /// Too many signatures that are not plainly good.
    TooMany(Duration),
    /// The store could not be read or written.
    Broken,
}

/// Why the store's side of an attempt came to nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    #[error("could not read a payment")]
    Read(#[from] ReadError),
    #[error("could not write a payment")]
    Write(#[from] CommitError),
    #[error("could not read or write what the account has")]
    Plan(#[from] PlanError),
    #[error("could not look up the name of a request")]
    Once(#[from] tollgate_purchase::idempotency::ClaimError),
}

impl Desk {
    /// A desk. Nothing is looked at before [`Desk::run`] runs.
    pub fn new(parts: Parts) -> Desk {
        let sealer = Sealer::new(&parts.store.root_secret().0);
        Desk {
            inner: Arc::new(Inner {
                health: Health::new(parts.clock.clone()),
                flights: Flights::new(parts.runtime.clone()),
                sealer,
                patience: Patience::default(),
                counters: Counters::default(),
                doubt: Notify::new(),
                parts,
            }),
        }
    }

    /// The price, in what, and to whom.
    pub fn terms(&self) -> &Terms {
        &self.inner.parts.terms
    }

    /// What is sold.
    pub fn product(&self) -> &Product {
        &self.inner.parts.product
    }

    /// What became of payments so far.
    pub fn counters(&self) -> &Counters {
        &self.inner.counters
    }

    /// Whether offers may be shown: the facilitator has said that it settles them, just now.
    pub fn is_open(&self) -> bool {
        self.inner.health.is_good()
    }

    /// Takes what somebody brings. What is begun goes on when the caller leaves.
    pub async fn ask(&self, wish: Wish) -> Told {
        let Some(payment) = wish.payment else {
            return self.inner.unpaid(wish.account).await;
        };
        let mark = Mark {
            account: wish.account,
            digest: rows::digest(&payment),
        };
        let key = rows::key(&payment, self.terms());
        let attempt = async {
            loop {
                let inner = Arc::clone(&self.inner);
                let (key, payment, names) = (key.clone(), payment.clone(), wish.names.clone());
                let boarded = self.inner.flights.board(&key.clone(), mark, || async move {
                    inner.bring(mark, key, payment, names).await
                });
                match boarded {
                    Boarded::Begun(end) => return landed(end).await.unwrap_or(Told::Processing),
                    // Who began it did not know what this request is called: once more, and the answer is kept under its names.
                    Boarded::Same(end) => match landed(end).await {
                        Some(Told::Done(_)) if !wish.names.is_empty() => {}
                        told => return told.unwrap_or(Told::Processing),
                    },
                    Boarded::Other(end) => {
                        landed(end).await;
                    }
                }
            }
        };
        let told = tokio::time::timeout(self.inner.parts.wait, attempt).await;
        let mut told = told.unwrap_or(Told::Processing);
        if matches!(told, Told::Refused { .. }) {
            told = self.inner.or_what_stands(wish.account, told).await;
        }
        if told == Told::UsedByAnother {
            Counters::one(&self.inner.counters.taken);
            tracing::warn!(account = %wish.account, payer = %payment.authorization.from,
                "a payment was brought by another account than the one that brought it first");
        }
        told
    }

    /// Works until it is dropped: asks what the facilitator settles, and looks at payments that are unclear. What an earlier run left is
    /// looked at first.
    pub async fn run(&self) {
        tokio::join!(self.keep_well(), self.keep_looking());
    }

    async fn keep_well(&self) {
        loop {
            self.inner.look_well().await;
            let pause = tokio::time::sleep(match self.inner.health.is_good() {
                true => HEALTH,
                false => HEALTH / 6,
            });
            // One buyer's payment can make the facilitator stumble. That closes the desk to all, and for no longer than one question.
            tokio::select! {
                () = self.inner.doubt.notified() => {}
                () = pause => {}
            }
        }
    }

    async fn keep_looking(&self) {
        self.recover().await;
        let mut turns = 0u32;
        loop {
            self.turn().await;
            if turns.is_multiple_of(FORGET_TURNS) {
                self.inner.forget().await;
            }
            turns = turns.wrapping_add(1);
            tokio::time::sleep(EVERY).await;
        }
    }

    /// Looks at everything that an earlier run left open.
    pub async fn recover(&self) {
        let Some(_turn) = self.inner.parts.runtime.background() else {
            return;
        };
        let open = reading(&self.inner.parts.store, |store| store.authorizations_open()).await;
        match open {
            Ok(rows) if rows.is_empty() => {}
            Ok(rows) => {
                tracing::warn!(
                    payments = rows.len(),
                    "reconciling payments that an earlier run left open"
                );
                self.look_at(rows).await;
            }
            Err(error) => tracing::error!(%error, "could not read which payments are unclear"),
        }
    }

    /// Looks once at everything that is due; says how many payments that were.
    pub async fn turn(&self) -> usize {
        let Some(_turn) = self.inner.parts.runtime.background() else {
            return 0;
        };
        let now = self.inner.now();
        let due = reading(&self.inner.parts.store, move |store| {
            store.authorizations_due(now, AT_ONCE)
        });
        match due.await {
            Ok(rows) => self.look_at(rows).await,
            Err(error) => {
                tracing::error!(%error, "could not read which payments are due");
                0
            }
        }
    }

    async fn look_at(&self, rows: Vec<AuthorizationRow>) -> usize {
        let mut ends = Vec::new();
        for row in rows {
            // One that is brought at this moment is looked at by whoever brings it.
            if self.inner.flights.has(&row.key) {
                continue;
            }
            let mark = Mark {
                account: row.account,
                digest: row.digest,
            };
            let (inner, key) = (Arc::clone(&self.inner), row.key.clone());
            let boarded = self
                .inner
                .flights
                .board(&key, mark, || async move { inner.look_again(row).await });
            if let Boarded::Begun(end) | Boarded::Same(end) = boarded {
                ends.push(end);
            }
        }
        let count = ends.len();
        for end in ends {
            landed(end).await;
        }
        count
    }
}

impl Inner {
    pub(super) fn now(&self) -> i64 {
        self.parts.clock.unix_micros()
    }

    async fn unpaid(&self, account: AccountId) -> Told {
        let standing = match self.parts.plans.state(account).await {
            Ok(standing) => standing,
            Err(error) => return broken(&error.into()),
        };
        match decide(asker(&standing), None) {
            Act::AlreadyActive => self.already_active(&standing),
            Act::Wait => self.wait_for(&standing),
            _ => Told::Offer,
        }
    }

    /// A refusal, or what is told instead of it: it shows an offer, and something else may have been bought meanwhile.
    async fn or_what_stands(&self, account: AccountId, refusal: Told) -> Told {
        match self.unpaid(account).await {
            Told::Offer => refusal,
            told => told,
        }
    }

    /// What is said while an earlier payment of an account is open.
    pub(super) fn wait_for(&self, standing: &PlanState) -> Told {
        let open = standing.authorization.as_ref();
        open.map_or(Told::Processing, |row| self.not_final(row))
    }

    /// What is said about an open payment.
    pub(super) fn not_final(&self, row: &AuthorizationRow) -> Told {
        if self.parts.node.is_none() || !rows::is_refused(row) {
            return Told::Processing;
        }
        let left = (row.valid_before + rows::GRACE - self.now()).max(0);
        Told::NotFinal {
            why: row.note.as_deref().unwrap_or_default().to_owned(),
            secs: (left / rows::SECOND).unsigned_abs() + 1,
        }
    }

    /// The standing of an account, and what is stored of a payment.
    pub(super) async fn read(
        &self,
        account: AccountId,
        key: &AuthorizationKey,
    ) -> Result<(PlanState, Option<AuthorizationRow>), Broken> {
        let wanted = key.clone();
        let row = reading(&self.parts.store, move |store| store.authorization(&wanted)).await?;
        Ok((self.parts.plans.state(account).await?, row))
    }

    pub(super) fn already_active(&self, standing: &PlanState) -> Told {
        match standing.active() {
            Some(row) => Told::Done(self.answer(row, None, true)),
            // It has ended between the two looks.
            None => Told::Offer,
        }
    }

    /// The answer to an account that has the plan.
    pub(super) fn answer(
        &self,
        row: &SubscriptionRow,
        receipt: Option<&str>,
        already_active: bool,
    ) -> Answer {
        let subscription = Subscription::new(self.parts.plans.plan(), row, self.now());
        let body =
            CommerceSubscription::active(self.parts.product.clone(), subscription, already_active);
        let body = serde_json::to_vec(&body).expect("texts and numbers are JSON");
        let fields = receipt.map(|receipt| ("PAYMENT-RESPONSE".to_owned(), receipt.to_owned()));
        Answer {
            status: 200,
            fields: fields.into_iter().collect(),
            body: body.into(),
        }
    }

    /// Asks the facilitator what it settles.
    async fn look_well(&self) {
        let said = self.facilitator(Operation::Supported, Bytes::new()).await;
        let network = &self.parts.terms.network;
        if let Ok(said) = said {
            let good = supports(&said, network);
            if !good && self.health.was_good() != Some(false) {
                tracing::warn!(status = said.status, %network, "the facilitator does not settle what is offered; nothing is");
            }
            self.health.note(good);
        }
    }

    /// Asks the facilitator. Its silence closes the desk until it says again that it works, which it is asked at once.
    pub(super) async fn facilitator(
        &self,
        operation: Operation,
        body: Bytes,
    ) -> Result<super::facilitator::Said, Silence> {
        let said = self.parts.facilitator.ask(operation, body).await;
        match &said {
            Err(error) => {
                // It is asked every few seconds: that it is still silent is told once.
                if operation != Operation::Supported || self.health.was_good() != Some(false) {
                    tracing::warn!(operation = operation.word(), %error, "the facilitator did not answer");
                }
            }
            Ok(said) if said.status >= 500 && operation == Operation::Verify => {}
            Ok(_) => return said,
        }
        self.health.note(false);
        if operation != Operation::Supported {
            self.doubt.notify_one();
        }
        said
    }

    async fn forget(&self) {
        let forget = part(AuthorizationPart::Forget {
            before: self.now() - 60 * rows::MINUTE,
            limit: 10_000,
        });
        if let Err(error) = self.write(forget).await {
            tracing::warn!(%error, "could not forget payments that were never sent");
        }
    }
}

impl fmt::Debug for Desk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Desk")
            .field("terms", self.terms())
            .finish_non_exhaustive()
    }
}

pub(super) fn asker(standing: &PlanState) -> Asker {
    Asker {
        has_open: standing.money_may_move(),
        is_active: standing.is_active(),
        may_renew: standing.may_renew(),
    }
}

pub(super) fn broken(error: &Broken) -> Told {
    let cause = std::error::Error::source(error).map(ToString::to_string);
    tracing::error!(%error, cause, "an attempt to pay came to nothing");
    Told::Broken
}

pub(super) fn part(part: AuthorizationPart) -> Part {
    Part::Authorization(Box::new(part))
}
