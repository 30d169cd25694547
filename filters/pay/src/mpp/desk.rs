//! The MPP processor: verifies a payment credential against the mandate at PayPal and activates the plan, or issues a challenge.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use http::{HeaderValue, header};
use tokio::sync::OwnedMutexGuard;
use tollgate_filter::{Clock, Entropy, ErrorCode, PaymentCredential};
use tollgate_money::AccountId;
use tollgate_purchase::idempotency::{Answer, Claim, ClaimOutcome, IdempotencyKeys};
use tollgate_purchase::mandates::{
    AttachParts, Mandates, OpenError, Urls, Verified, VerifyError, is_past_due,
};
use tollgate_purchase::plan::{PaymentState, PlanState, Plans};
use tollgate_purchase::wire::{CommerceSubscription, Product, Subscription as Wire, rfc3339};
use tollgate_purchase::{KeyedLock, PurchaseTasks};
use tollgate_store::{Endpoint, MandateRow, Part, Route, SubscriptionRow};

use super::binding::Secrets;
use super::challenge::{Challenge, Intent, Subscription, digest};
use super::credential::{Credential, Expected};
use super::receipt::Receipt;
use super::told::{self, Why, invalid, refused, unavailable, unclear, under_way, unwritten};
use crate::problem::Problem;
use crate::request::Asked;

/// Lifetime of a challenge, in seconds.
const EXPIRES: i64 = 30 * 60;

/// How long a request waits for the account's lock.
const PATIENCE: Duration = Duration::from_secs(20);

/// Settings of challenges.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The binding secrets.
    pub secrets: Secrets,
    /// The host of the service.
    pub realm: String,
    /// Whether a challenge is bound to the body of its request.
    pub digest: bool,
    /// Whether the credential has to come in `Payment-Authorization`.
    pub own_field: bool,
    /// The return URLs for the payment provider.
    pub urls: Urls,
}

/// Dependencies of the processor.
pub struct Parts {
    /// Subscriptions of accounts.
    pub plans: Plans,
    /// Mandates for monthly charges.
    pub mandates: Mandates,
    /// Idempotency keys.
    pub once: IdempotencyKeys,
    /// The product.
    pub product: Product,
    /// Settings of challenges.
    pub settings: Settings,
    /// The clock.
    pub clock: Clock,
    /// The source of randomness.
    pub entropy: Entropy,
    /// Runs purchases, so that a client that disconnects does not cancel them.
    pub runtime: PurchaseTasks,
}

/// The MPP processor. Cheap to clone.
#[derive(Clone)]
pub struct Desk {
    inner: Arc<Inner>,
}

struct Inner {
    parts: Parts,
    /// One lock per account: of two concurrent requests with the same credential the second finds the purchase of the first.
    locks: KeyedLock<AccountId>,
}

/// A purchase request.
pub(crate) struct Ask {
    pub(crate) account: AccountId,
    pub(crate) asked: Asked,
    pub(crate) payment: Option<PaymentCredential>,
    /// The unparsed body.
    pub(crate) body: Bytes,
    /// The intents that challenges are wanted for, by descending preference.
    pub(crate) intents: Vec<Intent>,
}

/// The idempotency keys that a request has claimed: its own, if it has one, and that of the challenge it answers.
struct Claims {
    named: Option<Claim>,
    used: Claim,
}

/// The state of a request's idempotency key.
enum Named {
    Mine(Claim),
    Replayed(Answer),
}

/// The outcome of a purchase request.
pub(crate) struct Sold {
    pub(crate) answer: Answer,
    /// Whether the answer is replayed.
    pub(crate) replayed: bool,
}

impl Desk {
    /// A processor with these dependencies.
    pub fn new(parts: Parts) -> Desk {
        Desk {
            inner: Arc::new(Inner {
                parts,
                locks: KeyedLock::default(),
            }),
        }
    }

    /// Answers a request. The purchase is carried out even if the client disconnects.
    pub(crate) async fn sell(&self, ask: Ask) -> Result<Sold, Problem> {
        let this = self.clone();
        let runtime = &self.inner.parts.runtime;
        let sold = runtime.spawn(async move { this.sell_alone(ask).await });
        sold.await.unwrap_or_else(|_| Err(unavailable()))
    }

    async fn sell_alone(&self, ask: Ask) -> Result<Sold, Problem> {
        let alone = tokio::time::timeout(PATIENCE, self.alone(ask.account));
        let Ok(_alone) = alone.await else {
            return Err(under_way());
        };
        let named = match &ask.asked.key {
            None => None,
            Some(key) => match self.named(&ask, key).await? {
                Named::Mine(claim) => Some(claim),
                Named::Replayed(answer) => {
                    return Ok(Sold {
                        answer,
                        replayed: true,
                    });
                }
            },
        };
        if let Some(active) = self.standing(ask.account).await?.active() {
            return self.already_active(ask.account, active).await;
        }
        let Some(payment) = &ask.payment else {
            return self.challenge(&ask, told::OFFER).await;
        };
        let credential = match self.read(&ask, payment) {
            Ok(credential) => credential,
            Err(error) if error.code == ErrorCode::MethodUnsupported => {
                return Err(told::other_method(error.detail));
            }
            Err(error) => {
                return self
                    .challenge(&ask, refused(error.code, error.detail))
                    .await;
            }
        };
        self.verify(&ask, &credential, named).await
    }

    /// Verifies the payment of a credential at the provider.
    async fn verify(
        &self,
        ask: &Ask,
        credential: &Credential,
        named: Option<Claim>,
    ) -> Result<Sold, Problem> {
        const USED: &str = "The challenge was used before. Use the one of this answer.";
        const UNKNOWN: &str = "Nothing is known of the purchase that the challenge names.";
        let parts = &self.inner.parts;
        let Ok(mandate) = credential.purchase.parse() else {
            return self.challenge(ask, invalid(UNKNOWN)).await;
        };
        let id = URL_SAFE_NO_PAD.encode(credential.id);
        let begun = parts
            .once
            .claim(ask.account, Endpoint::Challenge, &id, [0; 32]);
        let used = match begun.await {
            Ok(ClaimOutcome::Claimed(claim)) => claim,
            Ok(_) => {
                return self.challenge(ask, invalid(USED)).await;
            }
            Err(error) => return Err(unwritten(&error)),
        };
        let claims = Arc::new(Claims { named, used });
        let verified = parts
            .mandates
            .verify_with(mandate, Some(self.beside(&claims)));
        match verified.await {
            Ok(Verified::Paid(_, row)) if row.account != ask.account => {
                tracing::error!(mandate = %row.id, account = %ask.account, "a challenge was made for a mandate of another account");
                self.use_up(&claims).await;
                self.challenge(ask, told::NOT_THEIRS).await
            }
            Ok(Verified::Paid(subscription, row)) => {
                let answer = self.bought(&subscription, &row);
                // Stored with the payment already, unless the payment was recorded before this request.
                self.keep(claims.kept(&answer)).await;
                Ok(Sold {
                    answer,
                    replayed: false,
                })
            }
            Ok(Verified::Waiting(_)) => {
                drop(claims);
                self.challenge(ask, told::NOT_AGREED).await
            }
            Ok(Verified::Unpaid(row)) if is_past_due(&row) => {
                drop(claims);
                self.challenge(ask, told::NOT_COLLECTED).await
            }
            Ok(Verified::Unpaid(_)) => {
                drop(claims);
                self.challenge(ask, told::NOT_PAID).await
            }
            Ok(Verified::Over(row)) => {
                tracing::warn!(mandate = %row.id, account = %ask.account, state = ?row.state, "a payment that was shown is none");
                self.use_up(&claims).await;
                self.challenge(ask, told::NOT_KEPT).await
            }
            Err(VerifyError::Unknown(_)) => {
                drop(claims);
                self.challenge(ask, invalid(UNKNOWN)).await
            }
            Err(error) => {
                tracing::warn!(%mandate, %error, "a payment could not be looked at");
                Err(unclear())
            }
        }
    }

    /// The parts that are written in one unit of work with a payment.
    fn beside(&self, claims: &Arc<Claims>) -> AttachParts {
        let (this, claims) = (self.clone(), Arc::clone(claims));
        Arc::new(move |subscription: &SubscriptionRow, row: &MandateRow| {
            claims.kept(&this.bought(subscription, row))
        })
    }

    /// Reads a payment credential.
    fn read(
        &self,
        ask: &Ask,
        payment: &PaymentCredential,
    ) -> Result<Credential, super::CredentialError> {
        let parts = &self.inner.parts;
        let expected = Expected {
            secrets: &parts.settings.secrets,
            owner: &ask.account.to_string(),
            now: parts.clock.unix_micros().div_euclid(1_000_000),
            field: payment.field,
            body: &ask.body,
        };
        Credential::read(&payment.text, &expected)
    }

    /// A 402, with a challenge for the account's open mandate; no challenge while a transfer of the account may be moving.
    async fn challenge(&self, ask: &Ask, why: Why) -> Result<Sold, Problem> {
        let parts = &self.inner.parts;
        let opened = parts
            .mandates
            .open(ask.account, parts.settings.urls.clone());
        let (row, why) = match opened.await {
            Ok(row) => (row, why),
            // The owner has approved: the same challenge is repeated while the payment is awaited.
            Err(OpenError::Processing(row)) if why.state == PaymentState::Processing => (*row, why),
            Err(OpenError::Processing(row)) => {
                let code = why.code;
                (
                    *row,
                    Why {
                        code,
                        ..told::NOT_PAID
                    },
                )
            }
            Err(OpenError::Transfer) => return Err(told::elsewhere()),
            Err(OpenError::AlreadyActive(active)) => {
                return self.already_active(ask.account, &active).await;
            }
            Err(error) => {
                tracing::warn!(account = %ask.account, %error, "no mandate could be offered");
                return Err(unavailable());
            }
        };
        Err(self.problem(ask, &row, why))
    }

    fn problem(&self, ask: &Ask, row: &MandateRow, why: Why) -> Problem {
        let parts = &self.inner.parts;
        let (Some(id), Some(url)) = (&row.provider_ref, &row.approve_url) else {
            return unavailable();
        };
        let now = parts.clock.unix_micros();
        let subscription = Subscription {
            id: id.to_string(),
            plan: row.plan_id.to_string(),
            approval_url: url.to_string(),
        };
        let nonce = URL_SAFE_NO_PAD.encode(parts.entropy.bytes::<12>());
        let body = parts.settings.digest.then(|| digest(&ask.body));
        let mut problem = Problem::new(why.code, why.detail, why.state, why.action)
            .approval_url(&subscription.approval_url);
        for intent in &ask.intents {
            let challenge = Challenge {
                intent: *intent,
                realm: &parts.settings.realm,
                amount: row.price.cents().unsigned_abs(),
                currency: "USD",
                subscription: &subscription,
                expires: &rfc3339(now + EXPIRES * 1_000_000),
                description: &format!("{}, monthly", parts.product.name),
                owner: &row.account.to_string(),
                purchase: &row.id.to_string(),
                nonce: &nonce,
                digest: body.as_deref(),
                own_field: parts.settings.own_field,
            };
            let Ok(value) = HeaderValue::try_from(challenge.header(&parts.settings.secrets)) else {
                return unavailable();
            };
            problem = problem.header(header::WWW_AUTHENTICATE, value);
        }
        let Ok(link) = HeaderValue::try_from(format!("<{url}>; rel=\"payment\"")) else {
            return unavailable();
        };
        problem = problem.header(header::LINK, link);
        match why.retry_after {
            Some(wait) => problem.retry_after(wait),
            None => problem,
        }
    }

    /// The answer to an account that has the plan.
    async fn already_active(
        &self,
        account: AccountId,
        active: &SubscriptionRow,
    ) -> Result<Sold, Problem> {
        let mandate = match active.route {
            Route::PayPal => self.inner.parts.mandates.of(account).await,
            _ => Ok(None),
        };
        let mandate = mandate.map_err(|error| {
            tracing::warn!(%account, %error, "a mandate could not be read");
            unclear()
        })?;
        let own = mandate.filter(|row| row.provider_ref.as_deref() == Some(&*active.reference));
        Ok(Sold {
            answer: self.answer(active, own.as_ref(), true),
            replayed: false,
        })
    }

    /// The answer to an account that has the plan by this mandate, since now.
    fn bought(&self, subscription: &SubscriptionRow, row: &MandateRow) -> Answer {
        self.answer(subscription, Some(row), false)
    }

    fn answer(
        &self,
        subscription: &SubscriptionRow,
        row: Option<&MandateRow>,
        already_active: bool,
    ) -> Answer {
        let parts = &self.inner.parts;
        let now = parts.clock.unix_micros();
        let body = CommerceSubscription::active(
            parts.product.clone(),
            Wire::new(parts.plans.plan(), subscription, now),
            already_active,
        );
        let mut fields = vec![
            ("content-type".to_owned(), "application/json".to_owned()),
            ("cache-control".to_owned(), "private, no-store".to_owned()),
        ];
        fields.extend(
            row.and_then(receipt)
                .map(|receipt| ("payment-receipt".to_owned(), receipt)),
        );
        Answer {
            status: 200,
            fields,
            body: serde_json::to_vec(&body)
                .expect("texts and numbers serialise")
                .into(),
        }
    }

    async fn standing(&self, account: AccountId) -> Result<PlanState, Problem> {
        let standing = self.inner.parts.plans.state(account).await;
        standing.map_err(|error| {
            tracing::error!(%account, %error, "what an account has could not be read");
            unclear()
        })
    }

    async fn named(&self, ask: &Ask, key: &str) -> Result<Named, Problem> {
        let once = &self.inner.parts.once;
        let begun = once.claim(ask.account, Endpoint::Mpp, key, ask.asked.hash);
        match begun.await {
            Ok(ClaimOutcome::Claimed(claim)) => Ok(Named::Mine(claim)),
            Ok(ClaimOutcome::Answered(answer)) => Ok(Named::Replayed(answer)),
            Ok(ClaimOutcome::InProgress) => Err(under_way()),
            Ok(ClaimOutcome::OtherRequest) => Err(told::other_request()),
            Err(error) => Err(unwritten(&error)),
        }
    }

    async fn use_up(&self, claims: &Claims) {
        self.keep(vec![claims.used.consume_part()]).await;
    }

    async fn keep(&self, parts: Vec<Part>) {
        if let Err(error) = self.inner.parts.once.store_answers(parts).await {
            tracing::warn!(%error, "the answer to a purchase was not kept; the plan itself is");
        }
    }

    /// Takes the account's lock.
    async fn alone(&self, account: AccountId) -> OwnedMutexGuard<()> {
        self.inner.locks.acquire(account).await
    }
}

impl Claims {
    /// The parts that store the answer under the request's idempotency key and consume the challenge.
    fn kept(&self, answer: &Answer) -> Vec<Part> {
        let named = self.named.as_ref().map(|claim| claim.answer_part(answer));
        named
            .into_iter()
            .chain([self.used.consume_part()])
            .collect()
    }
}

/// The receipt of a mandate's first payment. It is the same each time it is sent.
fn receipt(row: &MandateRow) -> Option<String> {
    let receipt = Receipt {
        timestamp: &rfc3339(row.activated_at?),
        subscription: row.provider_ref.as_deref()?,
        purchase: &row.id.to_string(),
    };
    Some(receipt.header())
}

impl fmt::Debug for Desk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Desk").finish_non_exhaustive()
    }
}
