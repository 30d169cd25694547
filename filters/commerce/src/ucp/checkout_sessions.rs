//! Checkout sessions: create, get, update, complete and cancel, at the service's and the protocol's address.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, StatusCode, header};
use serde_json::Value;
use tollgate_filter::{
    ApiError, ErrorCode, ErrorShape, Exchange, FilterError, OldTls, Outcome, Principal, Reply,
    Request,
};
use tollgate_module::Snapshot;
use tollgate_money::CheckoutId;
use tollgate_purchase::checkouts::{CheckoutError, Checkouts, NewCheckout, Status, View};
use tollgate_purchase::idempotency::{Answer, Claim, ClaimOutcome, IdempotencyKeys, digest};
use tollgate_purchase::plan::{PaymentState, RetryAction};
use tollgate_store::{Endpoint, Part};

use super::agent::{self, AgentError, UcpAgent};
use super::idempotency_key;
use super::negotiate::{NegotiationError, negotiate};
use super::profiles::Profiles;
use super::request::{self, CheckoutChange, InvalidRequest};
use super::wire::{self, MerchantInfo, Negotiated, Notice};
use crate::config::UcpSettings;

/// `Retry-After` while the plan cannot be sold.
const RETRY_UNAVAILABLE: Duration = Duration::from_secs(30);

/// `Retry-After` while a payment is pending.
const RETRY_PENDING: Duration = Duration::from_secs(2);

/// Response header of a replayed response.
const REPLAYED: &str = "idempotent-replayed";

/// Format and path kind of a checkout route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CheckoutRoute {
    pub(crate) format: CheckoutFormat,
    /// The version of the protocol.
    pub(crate) version: &'static str,
    pub(crate) path: CheckoutPath,
}

/// Response format of checkouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CheckoutFormat {
    /// `UcpCheckoutSession`, the format of the service.
    Service,
    /// The format of the protocol.
    Protocol,
}

/// Kind of path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CheckoutPath {
    /// The collection: create.
    All,
    /// One checkout: get or update.
    One,
    Complete,
    Cancel,
}

/// Operation on a checkout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Create,
    Get,
    Update,
    Complete,
    Cancel,
}

/// Checkout operations and their dependencies.
pub(crate) struct CheckoutSessions {
    pub(crate) settings: Snapshot<UcpSettings>,
    pub(crate) checkouts: Checkouts,
    pub(crate) idempotency: IdempotencyKeys,
    pub(crate) merchant: MerchantInfo,
    /// Platform profiles for negotiation; without them, capabilities are assumed.
    pub(crate) profiles: Option<Profiles>,
}

/// Failure of an operation.
enum Failure {
    /// An error response.
    Rejected(Box<ApiError>),
    /// An error response with payment state and retry action.
    Payment(Box<ApiError>, PaymentState, RetryAction),
    /// A business outcome in the format of the protocol.
    BusinessOutcome(StatusCode, Value),
    /// The filter failed.
    Failed(FilterError),
}

impl From<ApiError> for Failure {
    fn from(error: ApiError) -> Failure {
        Failure::Rejected(Box::new(error))
    }
}

impl From<NegotiationError> for Failure {
    fn from(error: NegotiationError) -> Failure {
        match error {
            NegotiationError::Rejected(error) => Failure::Rejected(error),
            NegotiationError::BusinessOutcome(body) => {
                Failure::BusinessOutcome(StatusCode::OK, body)
            }
        }
    }
}

impl From<CheckoutError> for Failure {
    fn from(error: CheckoutError) -> Failure {
        let unavailable = |message: &'static str, wait| {
            ApiError::new(ErrorCode::PaymentRouteUnavailable, message).retry_after(wait)
        };
        match error {
            CheckoutError::NotModifiable(status) => {
                let message = format!(
                    "The checkout is `{}` and can no longer be changed.",
                    status.word()
                );
                ApiError::new(ErrorCode::NotModifiable, message).into()
            }
            CheckoutError::Closed(why) => {
                tracing::warn!(why, "creating checkout failed: the plan cannot be sold now");
                let message = "The plan cannot be bought by checkout at the moment. Nothing was charged; try again later, or use another payment route.";
                Failure::Payment(
                    Box::new(unavailable(message, RETRY_UNAVAILABLE)),
                    PaymentState::Unavailable,
                    RetryAction::RetrySame,
                )
            }
            CheckoutError::Processing => {
                let message = "Another payment of this account is pending. Do not pay again; send the request again in a moment.";
                Failure::Payment(
                    Box::new(unavailable(message, RETRY_PENDING)),
                    PaymentState::Processing,
                    RetryAction::RetrySame,
                )
            }
            CheckoutError::Provider(source) => {
                tracing::warn!(cause = %source, "querying payment provider for checkout failed");
                let message = "PayPal is not responding at the moment. Nothing is lost; send the same request again.";
                Failure::Payment(
                    Box::new(unavailable(message, RETRY_PENDING)),
                    PaymentState::Unavailable,
                    RetryAction::RetrySame,
                )
            }
            CheckoutError::Busy => ApiError::new(
                ErrorCode::Overloaded,
                "The checkout is being changed by another request. Send the request again.",
            )
            .retry_after(RETRY_PENDING)
            .into(),
            CheckoutError::Ending => ApiError::new(
                ErrorCode::Draining,
                "The gateway is shutting down. Send the request again.",
            )
            .retry_after(RETRY_PENDING)
            .into(),
            error => Failure::Failed(store_failed(error)),
        }
    }
}

fn store_failed(error: impl std::error::Error + Send + Sync + 'static) -> FilterError {
    let answer = ApiError::new(
        ErrorCode::StoreUnavailable,
        "Checkouts cannot be read or written at the moment. Nothing was charged; send the same request again.",
    )
    .retry_after(RETRY_PENDING);
    FilterError::new(answer, error)
}

/// A validated request: route, principal, platform and idempotency key.
struct CheckoutRequest {
    route: CheckoutRoute,
    operation: Operation,
    principal: Principal,
    agent: Option<UcpAgent>,
    /// Negotiated capabilities.
    negotiated: Negotiated,
    idempotency_key: Option<String>,
    /// Digest of the request, to detect reuse of the key for another request.
    request_hash: [u8; 32],
    body: Bytes,
    /// The checkout id in the path, unparsed.
    id: String,
}

/// The response of an operation.
struct CheckoutResponse {
    answer: Answer,
    replayed: bool,
}

impl CheckoutSessions {
    /// Handles a request on a checkout route.
    pub(crate) async fn answer(
        &self,
        route: CheckoutRoute,
        exchange: &mut Exchange,
    ) -> Result<Outcome, FilterError> {
        let shape = match route.format {
            CheckoutFormat::Service => ErrorShape::Envelope,
            CheckoutFormat::Protocol => ErrorShape::Ucp,
        };
        echo_request_id(exchange);
        match self.serve(route, exchange).await {
            Ok(response) => Ok(Outcome::reply(reply(&response))),
            Err(Failure::Rejected(error)) => Ok(Outcome::Refuse(error)),
            Err(Failure::Payment(error, state, action)) => {
                Ok(payment_error(exchange, &error, shape, (state, action)))
            }
            Err(Failure::BusinessOutcome(status, body)) => {
                let response = CheckoutResponse {
                    answer: answer_of(status, &body),
                    replayed: false,
                };
                Ok(Outcome::reply(reply(&response)))
            }
            Err(Failure::Failed(error)) => Err(error),
        }
    }

    async fn serve(
        &self,
        route: CheckoutRoute,
        exchange: &Exchange,
    ) -> Result<CheckoutResponse, Failure> {
        let mut request = self.parse(route, exchange)?;
        if request.operation == Operation::Get {
            request.negotiated = self.negotiate(&request).await?;
            let answer = self.get(&request).await?;
            return Ok(CheckoutResponse {
                answer,
                replayed: false,
            });
        }
        // The key is claimed before any other work and before the body is parsed: a key identifies one request.
        let claim = match &request.idempotency_key {
            None => None,
            Some(key) => {
                let endpoint = endpoint(route.format, request.operation);
                let claimed = self.idempotency.claim(
                    request.principal.account,
                    endpoint,
                    key,
                    request.request_hash,
                );
                match claimed
                    .await
                    .map_err(|error| Failure::Failed(store_failed(error)))?
                {
                    ClaimOutcome::Claimed(claim) => Some(claim),
                    ClaimOutcome::Answered(answer) => {
                        return Ok(CheckoutResponse {
                            answer,
                            replayed: true,
                        });
                    }
                    ClaimOutcome::InProgress => {
                        let message =
                            "The same request is still in progress. Send it again in a moment.";
                        let error = ApiError::new(ErrorCode::InProgress, message);
                        return Err(error.retry_after(Duration::from_secs(1)).into());
                    }
                    ClaimOutcome::OtherRequest => {
                        let message = "The Idempotency-Key was used for another request. Use a new key for each request.";
                        return Err(ApiError::new(ErrorCode::IdempotencyConflict, message).into());
                    }
                }
            }
        };
        // After the claim: a stored response is replayed even if the profile has changed since.
        request.negotiated = self.negotiate(&request).await?;
        let answer = match request.operation {
            Operation::Create => self.create(&request, claim).await?,
            Operation::Update => self.update(&request, claim).await?,
            Operation::Complete => self.complete(&request, claim).await?,
            Operation::Cancel | Operation::Get => self.cancel(&request, claim).await?,
        };
        Ok(CheckoutResponse {
            answer,
            replayed: false,
        })
    }

    /// Validates headers and connection.
    fn parse(&self, route: CheckoutRoute, exchange: &Exchange) -> Result<CheckoutRequest, Failure> {
        let request = &exchange.request;
        let principal = exchange.get::<Principal>().cloned();
        let Some(principal) = principal else {
            let error = ApiError::new(
                ErrorCode::InternalError,
                "This address is not configured correctly.",
            );
            let why = "the route has no `auth` before `commerce`";
            return Err(Failure::Failed(FilterError::new(error, why)));
        };
        let operation = match (route.path, &request.method) {
            (CheckoutPath::All, _) => Operation::Create,
            (CheckoutPath::One, &Method::PUT) => Operation::Update,
            (CheckoutPath::One, _) => Operation::Get,
            (CheckoutPath::Complete, _) => Operation::Complete,
            (CheckoutPath::Cancel, _) => Operation::Cancel,
        };
        if route.format == CheckoutFormat::Protocol {
            self.check_connection(exchange)?;
        }
        let key = idempotency_key::read(&request.headers).map_err(|_| {
            let message = "Idempotency-Key must occur once, with 1 to 255 visible ASCII characters and spaces; a UUID is recommended.";
            ApiError::new(ErrorCode::InvalidHeader, message).param("Idempotency-Key")
        })?;
        let agent = self.agent(route.format, request)?;
        check_signature(request)?;
        Ok(CheckoutRequest {
            route,
            operation,
            principal,
            agent,
            negotiated: Negotiated::granted(route.version),
            idempotency_key: key,
            request_hash: digest(&[
                request.method.as_str().as_bytes(),
                request.path.as_bytes(),
                &request.body,
            ]),
            body: request.body.clone(),
            id: checkout_id_in(route.path, &request.path).to_owned(),
        })
    }

    /// Requires TLS 1.3 (UCP 2026-04-08, REST binding, "Transport"), except from loopback.
    fn check_connection(&self, exchange: &Exchange) -> Result<(), ApiError> {
        let request = &exchange.request;
        let is_tls13 = request.tls && exchange.get::<OldTls>().is_none();
        if is_tls13 || request.client.is_local() || !self.settings.load().tls13_required {
            return Ok(());
        }
        Err(ApiError::new(
            ErrorCode::InsecureConnection,
            "This address requires TLS 1.3. Connect with TLS 1.3.",
        ))
    }

    /// The platform: optional at the service's address, and without a fetch of the profile.
    fn agent(
        &self,
        format: CheckoutFormat,
        request: &Request,
    ) -> Result<Option<UcpAgent>, ApiError> {
        let settings = self.settings.load();
        let read = agent::read(&request.headers, settings.profile_loopback);
        let refuse =
            |code, message: &'static str| Err(ApiError::new(code, message).param("UCP-Agent"));
        match (format, read) {
            (CheckoutFormat::Protocol, Ok(Some(agent))) if !is_served(&settings, &agent) => refuse(
                ErrorCode::ProfileNotTrusted,
                "The platform is not on the list of platforms that the operator of this service allows.",
            ),
            (_, Ok(Some(agent))) => Ok(Some(agent)),
            (CheckoutFormat::Protocol, Ok(None)) if settings.agent_required => refuse(
                ErrorCode::InvalidProfileUrl,
                "UCP-Agent is missing. Name the platform's profile: `UCP-Agent: profile=\"https://platform.example/.well-known/ucp\"`.",
            ),
            (_, Ok(None)) => Ok(None),
            (CheckoutFormat::Protocol, Err(AgentError::Version)) => {
                refuse(ErrorCode::VersionUnsupported, AgentError::Version.message())
            }
            (CheckoutFormat::Protocol, Err(error)) => {
                refuse(ErrorCode::InvalidProfileUrl, error.message())
            }
            (CheckoutFormat::Service, Err(error)) => {
                refuse(ErrorCode::InvalidHeader, error.message())
            }
        }
    }

    /// Negotiates capabilities. At the service's address no profile is fetched, so a profile cannot cause a failure.
    async fn negotiate(&self, request: &CheckoutRequest) -> Result<Negotiated, Failure> {
        match (&self.profiles, &request.agent) {
            (Some(profiles), Some(agent)) if request.route.format == CheckoutFormat::Protocol => {
                Ok(negotiate(profiles, agent, request.route.version).await?)
            }
            _ => Ok(Negotiated::granted(request.route.version)),
        }
    }

    async fn create(
        &self,
        request: &CheckoutRequest,
        claim: Option<Claim>,
    ) -> Result<Answer, Failure> {
        let change = self.change(request)?;
        let new = NewCheckout {
            account: request.principal.account,
            credential: Some(request.principal.credential),
            platform: request.agent.as_ref().map(|agent| agent.host.clone()),
            content: change.content.clone(),
        };
        let answer =
            |view: &View| self.session_answer(request, view, &change.notices, StatusCode::CREATED);
        let attached = |view: &View| answer_part(claim.as_ref(), &answer(view));
        let view = self.checkouts.begin(new, &attached).await?;
        Ok(answer(&view))
    }

    async fn get(&self, request: &CheckoutRequest) -> Result<Answer, Failure> {
        let view = self.find(request).await?;
        let view = match self.checkouts.refresh(view.clone()).await {
            Ok(view) => view,
            // Return the stored state; completion reconciles with the provider.
            Err(CheckoutError::Provider(_)) => view,
            Err(error) => return Err(error.into()),
        };
        if request.route.format == CheckoutFormat::Service && view.status() == Status::Canceled {
            let message = "The checkout session has ended without a charge. Create a new one.";
            return Err(ApiError::new(ErrorCode::SessionGone, message).into());
        }
        Ok(self.session_answer(request, &view, &[], StatusCode::OK))
    }

    async fn update(
        &self,
        request: &CheckoutRequest,
        claim: Option<Claim>,
    ) -> Result<Answer, Failure> {
        let view = self.find(request).await?;
        let change = self.change(request)?;
        let answer =
            |view: &View| self.session_answer(request, view, &change.notices, StatusCode::OK);
        let attached = |view: &View| answer_part(claim.as_ref(), &answer(view));
        let view = self
            .checkouts
            .update(view, change.content.clone(), &attached)
            .await?;
        Ok(answer(&view))
    }

    async fn complete(
        &self,
        request: &CheckoutRequest,
        claim: Option<Claim>,
    ) -> Result<Answer, Failure> {
        let mut view = self.find(request).await?;
        request::complete(&request.body)?;
        let mut is_retry = false;
        if let Some(key) = &request.idempotency_key {
            // Recorded before the provider is called: if the process dies during the call, the retry is still recognised as the same
            // request.
            let key = digest(&[b"complete", key.as_bytes()]);
            (view, is_retry) = self.checkouts.note_completion_request(view, key).await?;
        }
        let status = view.status();
        if status.is_final() && !(is_retry && status == Status::Completed) {
            return Err(CheckoutError::NotModifiable(status).into());
        }
        let answer = |view: &View| self.session_answer(request, view, &[], StatusCode::OK);
        let attached = |view: &View| answer_part(claim.as_ref(), &answer(view));
        let view = self.checkouts.reconcile(view, &attached).await?;
        Ok(answer(&view))
    }

    async fn cancel(
        &self,
        request: &CheckoutRequest,
        claim: Option<Claim>,
    ) -> Result<Answer, Failure> {
        let view = self.find(request).await?;
        request::cancel(&request.body)?;
        let answer = |view: &View| self.session_answer(request, view, &[], StatusCode::OK);
        let attached = |view: &View| answer_part(claim.as_ref(), &answer(view));
        let view = self.checkouts.cancel(view, &attached).await?;
        Ok(answer(&view))
    }

    /// The checkout of the path. Checkouts of other accounts are not found.
    async fn find(&self, request: &CheckoutRequest) -> Result<View, Failure> {
        let id: Option<CheckoutId> = request.id.parse().ok();
        let found = match id {
            Some(id) => self.checkouts.find(request.principal.account, id).await?,
            None => None,
        };
        found.ok_or_else(|| match request.route.format {
            CheckoutFormat::Service => ApiError::new(
                ErrorCode::NotFound,
                "This account has no such checkout session.",
            )
            .into(),
            CheckoutFormat::Protocol => Failure::BusinessOutcome(
                StatusCode::NOT_FOUND,
                wire::error(
                    request.route.version,
                    "not_found",
                    "This account has no such checkout session.",
                    None,
                ),
            ),
        })
    }

    fn change(&self, request: &CheckoutRequest) -> Result<CheckoutChange, Failure> {
        let product = &self.merchant.plan.product;
        let change = match request.route.format {
            CheckoutFormat::Service => request::service(&request.body, product),
            CheckoutFormat::Protocol => request::protocol(&request.body, product),
        };
        let message = || format!("Unknown product. The only product for sale is `{product}`.");
        change.map_err(|invalid| match (invalid, request.route.format) {
            (InvalidRequest::Error(error), _) => error.into(),
            (InvalidRequest::UnknownProduct { path }, CheckoutFormat::Service) => {
                let param = path.trim_start_matches("$.").to_owned();
                ApiError::new(ErrorCode::NotFound, message())
                    .param(param)
                    .into()
            }
            (InvalidRequest::UnknownProduct { path }, CheckoutFormat::Protocol) => {
                Failure::BusinessOutcome(
                    StatusCode::OK,
                    wire::error(request.route.version, "not_found", &message(), Some(&path)),
                )
            }
        })
    }

    /// The response for a checkout.
    fn session_answer(
        &self,
        request: &CheckoutRequest,
        view: &View,
        notices: &[Notice],
        status: StatusCode,
    ) -> Answer {
        let session = wire::protocol(view, &self.merchant, &request.negotiated, notices);
        let (session, family) = match request.route.format {
            CheckoutFormat::Service => (wire::service(session), "v1"),
            CheckoutFormat::Protocol => (session, request.route.version),
        };
        let mut answer = answer_of(status, &session);
        if status == StatusCode::CREATED {
            let base = &self.merchant.base_url;
            let location = format!("{base}/ucp/{family}/checkout-sessions/{}", view.row.id);
            answer.fields.push((String::from("location"), location));
        }
        answer
    }
}

/// Rejects signed requests: platform keys are not fetched, so a signature cannot be verified, and an unverified signature is not ignored.
fn check_signature(request: &Request) -> Result<(), ApiError> {
    let signed = ["signature", "signature-input"]
        .iter()
        .any(|name| request.headers.contains_key(*name));
    if !signed {
        return Ok(());
    }
    Err(ApiError::new(
        ErrorCode::KeyNotFound,
        "Signatures of platforms cannot be verified here, because their keys are not fetched. Send the request without Signature and \
         Signature-Input; the bearer credential is enough.",
    ))
}

fn answer_part(claim: Option<&Claim>, answer: &Answer) -> Vec<Part> {
    claim
        .map(|claim| claim.answer_part(answer))
        .into_iter()
        .collect()
}

fn answer_of(status: StatusCode, body: &Value) -> Answer {
    Answer {
        status: status.as_u16(),
        fields: Vec::new(),
        body: Arc::from(body.to_string().into_bytes()),
    }
}

fn reply(response: &CheckoutResponse) -> Reply {
    let answer = &response.answer;
    let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::OK);
    let mut reply = Reply::of(
        status,
        "application/json",
        Bytes::copy_from_slice(&answer.body),
    );
    for (name, value) in &answer.fields {
        if let (Ok(name), Ok(value)) = (
            name.parse::<http::HeaderName>(),
            HeaderValue::from_str(value),
        ) {
            reply.headers.insert(name, value);
        }
    }
    reply
        .headers
        .insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if response.replayed {
        reply
            .headers
            .insert(REPLAYED, HeaderValue::from_static("true"));
    }
    reply
}

/// An error response that includes payment state and retry action.
fn payment_error(
    exchange: &mut Exchange,
    error: &ApiError,
    shape: ErrorShape,
    (state, action): (PaymentState, RetryAction),
) -> Outcome {
    exchange.record.error = Some(error.code);
    let mut body: Value = serde_json::from_slice(&error.body(shape)).unwrap_or_default();
    body["payment_state"] = state.word().into();
    body["retry_action"] = action.word().into();
    let mut reply = Reply::of(
        error.status(),
        "application/json",
        Bytes::from(body.to_string()),
    );
    error.write_headers(&mut reply.headers);
    Outcome::reply(reply)
}

/// Echoes the platform's `Request-Id` (UCP 2026-04-08, REST binding).
fn echo_request_id(exchange: &mut Exchange) {
    const FIELD: &str = "request-id";
    let sent = exchange.request.single(FIELD);
    let valid = sent.filter(|text| (1..=64).contains(&text.len()));
    if let Some(value) = valid.and_then(|text| HeaderValue::from_str(text).ok()) {
        exchange.reply_headers.insert(FIELD, value);
    }
}

/// The checkout id in a path.
fn checkout_id_in(kind: CheckoutPath, path: &str) -> &str {
    let mut segments = path.rsplit('/');
    match kind {
        CheckoutPath::All => "",
        CheckoutPath::One => segments.next().unwrap_or_default(),
        CheckoutPath::Complete | CheckoutPath::Cancel => segments.nth(1).unwrap_or_default(),
    }
}

fn endpoint(format: CheckoutFormat, operation: Operation) -> Endpoint {
    match (format, operation) {
        (CheckoutFormat::Service, _) => Endpoint::Checkout,
        (CheckoutFormat::Protocol, Operation::Create) => Endpoint::UcpCreate,
        (CheckoutFormat::Protocol, Operation::Update) => Endpoint::UcpUpdate,
        (CheckoutFormat::Protocol, Operation::Complete) => Endpoint::UcpComplete,
        (CheckoutFormat::Protocol, Operation::Cancel | Operation::Get) => Endpoint::UcpCancel,
    }
}

/// Whether the platform is served.
fn is_served(settings: &UcpSettings, agent: &UcpAgent) -> bool {
    let hosts = settings.profile_hosts.as_ref();
    hosts.is_none_or(|hosts| hosts.iter().any(|host| **host == *agent.host))
}
