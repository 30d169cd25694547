//! The MPP processor: verifies a payment credential against the mandate at PayPal and activates the plan, or issues a challenge.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use http::{HeaderValue, header};
use serde_json::{Value, json};
use tokio::sync::OwnedMutexGuard;
use tollgate_clock::{Clock, Entropy};
use tollgate_filter::{ErrorCode, PaymentCredential};
use tollgate_module::Snapshot;
use tollgate_money::AccountId;
use tollgate_purchase::idempotency::{Answer, Claim, ClaimOutcome, IdempotencyKeys};
use tollgate_purchase::mandates::{
    AttachParts, Mandates, OpenError, Urls, Verified, VerifyError, is_past_due,
};
use tollgate_purchase::plan::{PaymentState, PlanState, Plans};
use tollgate_purchase::wire::{CommerceSubscription, Product, Subscription as Wire};
use tollgate_purchase::{KeyedLock, PurchaseTasks};
use tollgate_store::{Endpoint, MandateRow, Part, Route, SubscriptionRow};

use super::OWN_FIELD;
use super::binding::Secrets;
use super::challenge::{Challenge, Intent, Subscription, digest};
use super::credential::{Credential, Expected};
use super::problems::{
    self, ChallengeReason, in_progress, invalid, outcome_unknown, refused, store_unavailable,
    unavailable,
};
use super::receipt::Receipt;
use crate::problem::Problem;
use crate::request::ValidatedRequest;

const CHALLENGE_LIFETIME: Duration = Duration::from_mins(30);

/// How long a request waits for the account's lock.
const LOCK_TIMEOUT: Duration = Duration::from_secs(20);

/// Settings of challenges.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The binding secrets.
    pub secrets: Secrets,
    /// The host of the service.
    pub realm: String,
    /// Whether a challenge is bound to the body of its request.
    pub digest: bool,
    /// Whether challenges name `Payment-Authorization` as the field of their credential.
    pub own_field: bool,
    /// The return URLs for the payment provider.
    pub urls: Urls,
}

/// Dependencies of the processor.
pub struct MppDeps {
    /// Subscriptions of accounts.
    pub plans: Plans,
    /// Mandates for monthly charges.
    pub mandates: Mandates,
    pub idempotency_keys: IdempotencyKeys,
    pub product: Snapshot<Product>,
    /// Settings of challenges, those in force.
    pub settings: Snapshot<Settings>,
    pub clock: Clock,
    /// The source of randomness.
    pub entropy: Entropy,
    /// Runs purchases, so that a disconnected client does not cancel a purchase.
    pub runtime: PurchaseTasks,
}

/// The MPP processor. Cheap to clone.
#[derive(Clone)]
pub struct Processor {
    inner: Arc<MppContext>,
}

struct MppContext {
    deps: MppDeps,
    /// One lock per account: the second of two concurrent requests with one credential finds the purchase of the first.
    locks: KeyedLock<AccountId>,
}

pub(crate) struct PurchaseRequest {
    pub(crate) account: AccountId,
    pub(crate) validated: ValidatedRequest,
    pub(crate) payment: Option<PaymentCredential>,
    /// The unparsed body.
    pub(crate) body: Bytes,
    /// The intents to issue challenges for, by descending preference.
    pub(crate) intents: Vec<Intent>,
}

/// The idempotency keys claimed by a request: the request's key, if any, and the key of the answered challenge.
struct Claims {
    key: Option<Claim>,
    challenge: Claim,
}

/// The state of an idempotency key of a request.
enum KeyState {
    Claimed(Claim),
    Replayed(Answer),
    /// Claimed by another node. That node may have ended since; the key stays claimed until the node's recovery.
    InProgress,
}

/// The answer to a purchase request.
pub(crate) struct PurchaseAnswer {
    pub(crate) answer: Answer,
    /// Whether the answer is replayed.
    pub(crate) replayed: bool,
}

impl Processor {
    /// A processor with these dependencies.
    pub fn new(deps: MppDeps) -> Processor {
        Processor {
            inner: Arc::new(MppContext {
                deps,
                locks: KeyedLock::default(),
            }),
        }
    }

    /// Answers a request. The purchase is carried out even if the client disconnects.
    pub(crate) async fn purchase(
        &self,
        request: PurchaseRequest,
    ) -> Result<PurchaseAnswer, Problem> {
        let this = self.clone();
        let runtime = &self.inner.deps.runtime;
        let answer = runtime.spawn(async move { this.purchase_locked(request).await });
        answer.await.unwrap_or_else(|_| Err(unavailable()))
    }

    async fn purchase_locked(&self, request: PurchaseRequest) -> Result<PurchaseAnswer, Problem> {
        let lock = tokio::time::timeout(LOCK_TIMEOUT, self.lock_account(request.account));
        let Ok(_guard) = lock.await else {
            return Err(in_progress());
        };
        let key = match &request.validated.key {
            None => None,
            Some(key) => match self.claim_key(&request, key).await? {
                KeyState::Claimed(claim) => Some(claim),
                KeyState::Replayed(answer) => {
                    return Ok(PurchaseAnswer {
                        answer,
                        replayed: true,
                    });
                }
                KeyState::InProgress => return self.recorded_elsewhere(&request).await,
            },
        };
        if let Some(active) = self.plan_state(request.account).await?.active() {
            return match self.recorded_before(&request, active, key).await? {
                Some(answer) => Ok(answer),
                None => self.already_active(request.account, active).await,
            };
        }
        let Some(payment) = &request.payment else {
            return self.challenge(&request, problems::OFFER).await;
        };
        let credential = match self.read(&request, payment) {
            Ok(credential) => credential,
            Err(error) if error.code == ErrorCode::MethodUnsupported => {
                return Err(problems::other_method(error.detail));
            }
            Err(error) => {
                return self
                    .challenge(&request, refused(error.code, error.detail))
                    .await;
            }
        };
        self.verify(&request, &credential, key).await
    }

    /// The answer to a credential for a payment recorded before, by reconciliation or after a notification: the payment's receipt, once.
    async fn recorded_before(
        &self,
        request: &PurchaseRequest,
        active: &SubscriptionRow,
        key: Option<Claim>,
    ) -> Result<Option<PurchaseAnswer>, Problem> {
        let Some((credential, row)) = self.named_mandate(request, active).await? else {
            return Ok(None);
        };
        let answer = self.new_answer(active, &row);
        match self.claim_challenge(request.account, &credential).await? {
            KeyState::Claimed(challenge) => {
                let claims = Claims { key, challenge };
                self.store_answers(claims.parts(&answer)).await;
            }
            KeyState::Replayed(_) => return Ok(None),
            // The payment is recorded, so the other request gets an equal answer.
            KeyState::InProgress => {}
        }
        Ok(Some(PurchaseAnswer {
            answer,
            replayed: false,
        }))
    }

    /// [`recorded_before`](Self::recorded_before) for a key claimed by another node: no answer is stored under the key.
    async fn recorded_elsewhere(
        &self,
        request: &PurchaseRequest,
    ) -> Result<PurchaseAnswer, Problem> {
        let state = self.plan_state(request.account).await?;
        let active = state.active().ok_or_else(in_progress)?;
        let named = self.named_mandate(request, active).await?;
        let (_, row) = named.ok_or_else(in_progress)?;
        Ok(PurchaseAnswer {
            answer: self.new_answer(active, &row),
            replayed: false,
        })
    }

    /// The credential of a request and the named mandate, if the mandate pays for the active plan.
    async fn named_mandate(
        &self,
        request: &PurchaseRequest,
        active: &SubscriptionRow,
    ) -> Result<Option<(Credential, MandateRow)>, Problem> {
        let payment = request.payment.as_ref();
        let Some(credential) = payment.and_then(|payment| self.read(request, payment).ok()) else {
            return Ok(None);
        };
        let mandate = self.own_mandate(request.account, active).await?;
        let named = mandate.filter(|row| row.id.to_string() == credential.purchase);
        Ok(named.map(|row| (credential, row)))
    }

    async fn claim_challenge(
        &self,
        account: AccountId,
        credential: &Credential,
    ) -> Result<KeyState, Problem> {
        let id = URL_SAFE_NO_PAD.encode(credential.id);
        self.claim((account, Endpoint::Challenge), &id, [0; 32])
            .await
    }

    /// Verifies the payment of a credential at the provider.
    async fn verify(
        &self,
        request: &PurchaseRequest,
        credential: &Credential,
        key: Option<Claim>,
    ) -> Result<PurchaseAnswer, Problem> {
        const USED: &str =
            "The challenge was answered before. Answer the challenge of this response.";
        const UNKNOWN: &str = "The purchase that the challenge names does not exist. Answer the challenge of this response.";
        let deps = &self.inner.deps;
        let Ok(mandate) = credential.purchase.parse() else {
            return self.challenge(request, invalid(UNKNOWN)).await;
        };
        let challenge = match self.claim_challenge(request.account, credential).await? {
            KeyState::Claimed(challenge) => challenge,
            KeyState::Replayed(_) => return self.challenge(request, invalid(USED)).await,
            KeyState::InProgress => return Err(in_progress()),
        };
        let claims = Arc::new(Claims { key, challenge });
        let verified = deps
            .mandates
            .verify_with(mandate, Some(self.attached_parts(&claims)));
        match verified.await {
            Ok(Verified::Paid(_, row)) if row.account != request.account => {
                tracing::error!(mandate = %row.id, account = %request.account, "rejected payment credential: the challenge names a mandate of another account");
                self.consume(&claims).await;
                self.challenge(request, problems::OTHER_ACCOUNT).await
            }
            Ok(Verified::Paid(subscription, row)) => {
                let answer = self.new_answer(&subscription, &row);
                // Stored with the payment already, unless the payment was recorded before this request.
                self.store_answers(claims.parts(&answer)).await;
                Ok(PurchaseAnswer {
                    answer,
                    replayed: false,
                })
            }
            Ok(Verified::Waiting(_)) => {
                drop(claims);
                self.challenge(request, problems::NOT_APPROVED).await
            }
            Ok(Verified::Unpaid(row)) if is_past_due(&row) => {
                drop(claims);
                self.challenge(request, problems::NOT_COLLECTED).await
            }
            Ok(Verified::Unpaid(_)) => {
                drop(claims);
                self.challenge(request, problems::NOT_PAID).await
            }
            Ok(Verified::Over(row)) => {
                tracing::warn!(mandate = %row.id, account = %request.account, state = ?row.state, "rejected payment credential: the mandate has ended");
                self.consume(&claims).await;
                self.challenge(request, problems::ENDED).await
            }
            Err(VerifyError::Unknown(_)) => {
                drop(claims);
                self.challenge(request, invalid(UNKNOWN)).await
            }
            Err(error) => {
                tracing::warn!(%mandate, %error, "verifying mandate failed");
                Err(outcome_unknown())
            }
        }
    }

    /// The parts written in one unit of work with a payment.
    fn attached_parts(&self, claims: &Arc<Claims>) -> AttachParts {
        let (this, claims) = (self.clone(), Arc::clone(claims));
        Arc::new(move |subscription: &SubscriptionRow, row: &MandateRow| {
            claims.parts(&this.new_answer(subscription, row))
        })
    }

    /// Parses and verifies a payment credential.
    fn read(
        &self,
        request: &PurchaseRequest,
        payment: &PaymentCredential,
    ) -> Result<Credential, super::CredentialError> {
        let deps = &self.inner.deps;
        let settings = deps.settings.load();
        let expected = Expected {
            secrets: &settings.secrets,
            owner: &request.account.to_string(),
            now: deps.clock.now(),
            field: payment.field,
            body: &request.body,
        };
        Credential::read(&payment.text, &expected)
    }

    /// A 402, with a challenge for the account's open mandate; no challenge while a transfer of the account may be moving.
    async fn challenge(
        &self,
        request: &PurchaseRequest,
        reason: ChallengeReason,
    ) -> Result<PurchaseAnswer, Problem> {
        let deps = &self.inner.deps;
        let urls = deps.settings.load().urls.clone();
        let opened = deps.mandates.open(request.account, urls);
        let (row, reason) = match opened.await {
            Ok(row) => (row, reason),
            // The owner has approved: the same challenge is repeated while the payment is awaited.
            Err(OpenError::Processing(row)) if reason.state == PaymentState::Processing => {
                (*row, reason)
            }
            Err(OpenError::Processing(row)) => {
                let code = reason.code;
                (
                    *row,
                    ChallengeReason {
                        code,
                        ..problems::NOT_PAID
                    },
                )
            }
            Err(OpenError::Transfer) => return Err(problems::transfer_in_progress()),
            Err(OpenError::AlreadyActive(active)) => {
                return self.already_active(request.account, &active).await;
            }
            Err(error) => {
                tracing::warn!(account = %request.account, %error, "opening mandate failed");
                return Err(unavailable());
            }
        };
        Err(self.problem(request, &row, reason))
    }

    fn problem(
        &self,
        request: &PurchaseRequest,
        row: &MandateRow,
        reason: ChallengeReason,
    ) -> Problem {
        let deps = &self.inner.deps;
        let settings = deps.settings.load();
        let (Some(id), Some(url)) = (&row.provider_ref, &row.approve_url) else {
            return unavailable();
        };
        let expires = deps.clock.now() + CHALLENGE_LIFETIME;
        let subscription = Subscription {
            id: id.to_string(),
            plan: row.plan_id.to_string(),
            approval_url: url.to_string(),
        };
        let nonce = URL_SAFE_NO_PAD.encode(deps.entropy.bytes::<12>());
        let body = settings.digest.then(|| digest(&request.body));
        let product = deps.product.load();
        let includes = product.includes();
        let detail = format!("{} Each payment buys: {includes}.", reason.detail);
        let mut members = answer_to(&subscription, settings.own_field);
        members["includes"] = product.includes.clone().into();
        let mut problem = Problem::new(reason.code, detail, reason.state, reason.action)
            .approval_url(&subscription.approval_url)
            .payment(members);
        for intent in &request.intents {
            let challenge = Challenge {
                intent: *intent,
                realm: &settings.realm,
                amount: row.price.cents().unsigned_abs(),
                currency: "USD",
                subscription: &subscription,
                expires: &expires.rfc3339(),
                description: &format!("{}, monthly: {includes}", product.name),
                owner: &row.account.to_string(),
                purchase: &row.id.to_string(),
                nonce: &nonce,
                digest: body.as_deref(),
                own_field: settings.own_field,
            };
            let Ok(value) = HeaderValue::try_from(challenge.header(&settings.secrets)) else {
                return unavailable();
            };
            problem = problem.header(header::WWW_AUTHENTICATE, value);
        }
        let Ok(link) = HeaderValue::try_from(format!("<{url}>; rel=\"payment\"")) else {
            return unavailable();
        };
        problem = problem.header(header::LINK, link);
        match reason.retry_after {
            Some(wait) => problem.retry_after(wait),
            None => problem,
        }
    }

    /// The answer to an account that has the plan.
    async fn already_active(
        &self,
        account: AccountId,
        active: &SubscriptionRow,
    ) -> Result<PurchaseAnswer, Problem> {
        let own = self.own_mandate(account, active).await?;
        Ok(PurchaseAnswer {
            answer: self.answer(active, own.as_ref(), true),
            replayed: false,
        })
    }

    /// The mandate that pays for the active plan.
    async fn own_mandate(
        &self,
        account: AccountId,
        active: &SubscriptionRow,
    ) -> Result<Option<MandateRow>, Problem> {
        let mandate = match active.route {
            Route::PayPal => self.inner.deps.mandates.of(account).await,
            _ => Ok(None),
        };
        let mandate = mandate.map_err(|error| {
            tracing::warn!(%account, %error, "reading mandate failed");
            outcome_unknown()
        })?;
        Ok(mandate.filter(|row| row.provider_ref.as_deref() == Some(&*active.reference)))
    }

    /// The answer to an account whose plan this mandate has just activated.
    fn new_answer(&self, subscription: &SubscriptionRow, row: &MandateRow) -> Answer {
        self.answer(subscription, Some(row), false)
    }

    fn answer(
        &self,
        subscription: &SubscriptionRow,
        row: Option<&MandateRow>,
        already_active: bool,
    ) -> Answer {
        let deps = &self.inner.deps;
        let now = deps.clock.now();
        let body = CommerceSubscription::active(
            Product::clone(&deps.product.load()),
            Wire::new(deps.plans.plan(), subscription, now),
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

    async fn plan_state(&self, account: AccountId) -> Result<PlanState, Problem> {
        let plan_state = self.inner.deps.plans.state(account).await;
        plan_state.map_err(|error| {
            tracing::error!(%account, %error, "reading plan state failed");
            outcome_unknown()
        })
    }

    async fn claim_key(&self, request: &PurchaseRequest, key: &str) -> Result<KeyState, Problem> {
        let of = (request.account, Endpoint::Mpp);
        self.claim(of, key, request.validated.hash).await
    }

    async fn claim(
        &self,
        (account, endpoint): (AccountId, Endpoint),
        key: &str,
        hash: [u8; 32],
    ) -> Result<KeyState, Problem> {
        let keys = &self.inner.deps.idempotency_keys;
        match keys.claim(account, endpoint, key, hash).await {
            Ok(ClaimOutcome::Claimed(claim)) => Ok(KeyState::Claimed(claim)),
            Ok(ClaimOutcome::Answered(answer)) => Ok(KeyState::Replayed(answer)),
            Ok(ClaimOutcome::InProgress) => Ok(KeyState::InProgress),
            Ok(ClaimOutcome::OtherRequest) => Err(problems::other_request()),
            Err(error) => Err(store_unavailable(&error)),
        }
    }

    async fn consume(&self, claims: &Claims) {
        self.store_answers(vec![claims.challenge.consume_part()])
            .await;
    }

    async fn store_answers(&self, parts: Vec<Part>) {
        if let Err(error) = self.inner.deps.idempotency_keys.store_answers(parts).await {
            tracing::warn!(%error, "storing purchase answer failed; the plan is active");
        }
    }

    /// Takes the account's lock.
    async fn lock_account(&self, account: AccountId) -> OwnedMutexGuard<()> {
        self.inner.locks.acquire(account).await
    }
}

impl Claims {
    /// The parts that store the answer under the request's idempotency key and mark the challenge as used.
    fn parts(&self, answer: &Answer) -> Vec<Part> {
        let stored = self.key.as_ref().map(|claim| claim.answer_part(answer));
        stored
            .into_iter()
            .chain([self.challenge.consume_part()])
            .collect()
    }
}

/// How a challenge is answered, for programs that have no library for the scheme.
fn answer_to(subscription: &Subscription, own_field: bool) -> Value {
    let field = match own_field {
        true => OWN_FIELD,
        false => "Authorization",
    };
    json!({"credential": {
        "header": format!("{field}: Payment <credential>"),
        "encoding": "base64url without padding, of a JSON object with `challenge` and `payload`",
        "challenge": "an object with every parameter of the Payment challenge in WWW-Authenticate, unchanged",
        "payload": {"type": "subscription", "subscriptionId": subscription.id},
    }})
}

/// The receipt of a mandate's first payment, equal in each answer.
fn receipt(row: &MandateRow) -> Option<String> {
    let receipt = Receipt {
        timestamp: &row.activated_at?.rfc3339(),
        subscription: row.provider_ref.as_deref()?,
        purchase: &row.id.to_string(),
    };
    Some(receipt.header())
}

impl fmt::Debug for Processor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Processor").finish_non_exhaustive()
    }
}
