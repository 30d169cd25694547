//! The operations on checkouts, at the service's address and at the protocol's.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, StatusCode, header};
use serde_json::Value;
use tollgate_filter::{
    ApiError, ErrorCode, ErrorShape, Exchange, FilterError, OldTls, Outcome, Principal, Reply,
    Request,
};
use tollgate_money::CheckoutId;
use tollgate_purchase::checkouts::{CheckoutError, Checkouts, NewCheckout, Status, View};
use tollgate_purchase::idempotency::{Answer, Claim, ClaimOutcome, IdempotencyKeys, digest};
use tollgate_purchase::plan::{PaymentState, RetryAction};
use tollgate_store::{CredentialId, Endpoint, Part};

use super::agent::{self, Agent, AgentFault};
use super::profiles::Profiles;
use super::request::{self, Said, Unfit};
use super::terms::{Disagreement, negotiate};
use super::wire::{self, Negotiated, Remark, Shown};
use super::{VERSION, name};
use crate::config::UcpSettings;

/// After how long to ask again where nothing can be sold.
const CLOSED: Duration = Duration::from_secs(30);

/// After how long to ask again while something is on its way.
const SOON: Duration = Duration::from_secs(2);

/// Tells that an answer is one that was given before.
const REPLAYED: &str = "idempotent-replayed";

/// What stands at the path of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) form: Form,
    pub(crate) at: At,
}

/// In which form checkouts are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// `UcpCheckoutSession`, as the service describes it.
    Service,
    /// As the protocol does.
    Protocol,
}

/// A kind of path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
    /// All checkouts: one is begun.
    All,
    /// One checkout: it is read, or changed.
    One,
    /// `.../complete`
    Complete,
    /// `.../cancel`
    Cancel,
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Create,
    Get,
    Update,
    Complete,
    Cancel,
}

/// Everything that checkouts need.
pub(crate) struct Sessions {
    pub(crate) settings: UcpSettings,
    pub(crate) checkouts: Checkouts,
    pub(crate) once: IdempotencyKeys,
    pub(crate) shown: Shown,
    /// Where platforms are negotiated with; without them what they can do is taken for granted.
    pub(crate) profiles: Option<Profiles>,
}

/// Why there is no answer of the ordinary kind.
enum Fault {
    /// The client is told this.
    Refuse(Box<ApiError>),
    /// The same, with what has become of the payment.
    Payment(Box<ApiError>, PaymentState, RetryAction),
    /// The platform is told this in the form for business outcomes.
    Told(StatusCode, Value),
    /// No decision could be made.
    Failed(FilterError),
}

impl From<ApiError> for Fault {
    fn from(error: ApiError) -> Fault {
        Fault::Refuse(Box::new(error))
    }
}

impl From<Disagreement> for Fault {
    fn from(disagreement: Disagreement) -> Fault {
        match disagreement {
            Disagreement::Refused(error) => Fault::Refuse(error),
            Disagreement::Told(body) => Fault::Told(StatusCode::OK, body),
        }
    }
}

impl From<CheckoutError> for Fault {
    fn from(error: CheckoutError) -> Fault {
        let unavailable = |message: &'static str, wait| {
            ApiError::new(ErrorCode::PaymentRouteUnavailable, message).retry_after(wait)
        };
        match error {
            CheckoutError::NotModifiable(status) => {
                let message = format!(
                    "The checkout is `{}` and is not changed any more.",
                    status.word()
                );
                ApiError::new(ErrorCode::NotModifiable, message).into()
            }
            CheckoutError::Closed(why) => {
                tracing::warn!(why, "a checkout was not begun");
                let message = "The plan cannot be bought by checkout at the moment. Nothing was charged; try again later, or choose another way of paying.";
                Fault::Payment(
                    Box::new(unavailable(message, CLOSED)),
                    PaymentState::Unavailable,
                    RetryAction::RetrySame,
                )
            }
            CheckoutError::Processing => {
                let message = "Another payment of this account is not clear yet. Do not pay again; ask again in a moment.";
                Fault::Payment(
                    Box::new(unavailable(message, SOON)),
                    PaymentState::Processing,
                    RetryAction::RetrySame,
                )
            }
            CheckoutError::Provider(source) => {
                tracing::warn!(cause = %source, "the payment provider could not be asked about a checkout");
                let message = "PayPal does not answer at the moment. Nothing is lost; send the same request again.";
                Fault::Payment(
                    Box::new(unavailable(message, SOON)),
                    PaymentState::Unavailable,
                    RetryAction::RetrySame,
                )
            }
            CheckoutError::Busy => ApiError::new(
                ErrorCode::Overloaded,
                "The checkout is being changed by others. Send the request again.",
            )
            .retry_after(SOON)
            .into(),
            CheckoutError::Ending => ApiError::new(
                ErrorCode::Draining,
                "The gateway is shutting down. Send the request again.",
            )
            .retry_after(SOON)
            .into(),
            error => Fault::Failed(store_failed(error)),
        }
    }
}

fn store_failed(error: impl std::error::Error + Send + Sync + 'static) -> FilterError {
    let told = ApiError::new(
        ErrorCode::StoreUnavailable,
        "Checkouts cannot be read or written at the moment. Nothing was charged; send the same request again.",
    )
    .retry_after(SOON);
    FilterError::new(told, error)
}

/// One request, as far as every operation needs it.
struct Asked {
    place: Place,
    operation: Operation,
    principal: Principal,
    agent: Option<Agent>,
    /// What it and this service have in common.
    negotiated: Negotiated,
    /// What the platform calls the request.
    name: Option<String>,
    /// Tells it from another request of the same name.
    hash: [u8; 32],
    body: Bytes,
    /// The text that the path names a checkout by.
    id: String,
}

/// What an operation came to, before it is sent.
struct Came {
    answer: Answer,
    replayed: bool,
}

impl Sessions {
    /// The answer to a request at a place.
    pub(crate) async fn answer(
        &self,
        place: Place,
        exchange: &mut Exchange,
    ) -> Result<Outcome, FilterError> {
        let shape = match place.form {
            Form::Service => ErrorShape::Envelope,
            Form::Protocol => ErrorShape::Ucp,
        };
        echo_request_id(exchange);
        match self.serve(place, exchange).await {
            Ok(came) => Ok(Outcome::reply(reply(&came))),
            Err(Fault::Refuse(error)) => Ok(Outcome::Refuse(error)),
            Err(Fault::Payment(error, state, action)) => {
                Ok(with_state(exchange, &error, shape, (state, action)))
            }
            Err(Fault::Told(status, body)) => {
                let came = Came {
                    answer: told(status, &body),
                    replayed: false,
                };
                Ok(Outcome::reply(reply(&came)))
            }
            Err(Fault::Failed(error)) => Err(error),
        }
    }

    async fn serve(&self, place: Place, exchange: &Exchange) -> Result<Came, Fault> {
        let mut asked = self.read(place, exchange)?;
        if asked.operation == Operation::Get {
            asked.negotiated = self.negotiate(&asked).await?;
            let answer = self.get(&asked).await?;
            return Ok(Came {
                answer,
                replayed: false,
            });
        }
        // Claimed before anything is done, and before the body is looked at: a name means one request.
        let claim = match &asked.name {
            None => None,
            Some(name) => {
                let endpoint = endpoint(place.form, asked.operation);
                let begun = self
                    .once
                    .claim(asked.principal.account, endpoint, name, asked.hash);
                match begun
                    .await
                    .map_err(|error| Fault::Failed(store_failed(error)))?
                {
                    ClaimOutcome::Claimed(claim) => Some(claim),
                    ClaimOutcome::Answered(answer) => {
                        return Ok(Came {
                            answer,
                            replayed: true,
                        });
                    }
                    ClaimOutcome::InProgress => {
                        let message =
                            "The same request is still being worked on. Send it again in a moment.";
                        let error = ApiError::new(ErrorCode::InProgress, message);
                        return Err(error.retry_after(Duration::from_secs(1)).into());
                    }
                    ClaimOutcome::OtherRequest => {
                        let message = "The Idempotency-Key stands for another request. Use a new one for each.";
                        return Err(ApiError::new(ErrorCode::IdempotencyConflict, message).into());
                    }
                }
            }
        };
        // After the claim: what was answered before is told again, wherever the profile is by now.
        asked.negotiated = self.negotiate(&asked).await?;
        let answer = match asked.operation {
            Operation::Create => self.create(&asked, claim).await?,
            Operation::Update => self.update(&asked, claim).await?,
            Operation::Complete => self.complete(&asked, claim).await?,
            Operation::Cancel | Operation::Get => self.cancel(&asked, claim).await?,
        };
        Ok(Came {
            answer,
            replayed: false,
        })
    }

    /// Checks the head.
    fn read(&self, place: Place, exchange: &Exchange) -> Result<Asked, Fault> {
        let request = &exchange.request;
        let principal = exchange.get::<Principal>().cloned();
        let Some(principal) = principal else {
            let told = ApiError::new(ErrorCode::InternalError, "This address is not set up.");
            let why = "the route has no `auth` before `commerce`";
            return Err(Fault::Failed(FilterError::new(told, why)));
        };
        let operation = match (place.at, &request.method) {
            (At::All, _) => Operation::Create,
            (At::One, &Method::PUT) => Operation::Update,
            (At::One, _) => Operation::Get,
            (At::Complete, _) => Operation::Complete,
            (At::Cancel, _) => Operation::Cancel,
        };
        if place.form == Form::Protocol {
            self.check_connection(exchange)?;
        }
        let name = name::read(&request.headers).map_err(|_| {
            let message = "Idempotency-Key must stand once, with 1 to 255 visible ASCII characters; a UUID is best.";
            ApiError::new(ErrorCode::InvalidHeader, message).param("Idempotency-Key")
        })?;
        let agent = self.agent(place.form, request)?;
        check_signature(request)?;
        Ok(Asked {
            place,
            operation,
            principal,
            agent,
            negotiated: Negotiated::granted(),
            name,
            hash: digest(&[
                request.method.as_str().as_bytes(),
                request.path.as_bytes(),
                &request.body,
            ]),
            body: request.body.clone(),
            id: id_in(place.at, &request.path).to_owned(),
        })
    }

    /// TLS 1.3 at least (UCP 2026-04-08, REST binding, "Transport"); whoever is on this machine needs none.
    fn check_connection(&self, exchange: &Exchange) -> Result<(), ApiError> {
        let request = &exchange.request;
        let guarded = request.tls && exchange.get::<OldTls>().is_none();
        if guarded || request.client.is_local() || !self.settings.tls13_required {
            return Ok(());
        }
        Err(ApiError::new(
            ErrorCode::InsecureConnection,
            "This address is used over TLS 1.3. Connect with it.",
        ))
    }

    /// The platform. The service's address needs none, and never fetches a profile.
    fn agent(&self, form: Form, request: &Request) -> Result<Option<Agent>, ApiError> {
        let read = agent::read(&request.headers, self.settings.profile_loopback);
        let refuse = |code, words: &'static str| Err(ApiError::new(code, words).param("UCP-Agent"));
        match (form, read) {
            (Form::Protocol, Ok(Some(agent))) if !self.trusts(&agent) => refuse(
                ErrorCode::ProfileNotTrusted,
                "This service works with platforms that its operator has named, and this is none of them.",
            ),
            (_, Ok(Some(agent))) => Ok(Some(agent)),
            (Form::Protocol, Ok(None)) if self.settings.agent_required => refuse(
                ErrorCode::InvalidProfileUrl,
                "UCP-Agent is missing. Name the platform's profile: `UCP-Agent: profile=\"https://platform.example/.well-known/ucp\"`.",
            ),
            (_, Ok(None)) => Ok(None),
            (Form::Protocol, Err(AgentFault::Version)) => {
                refuse(ErrorCode::VersionUnsupported, AgentFault::Version.words())
            }
            (Form::Protocol, Err(fault)) => refuse(ErrorCode::InvalidProfileUrl, fault.words()),
            (Form::Service, Err(fault)) => refuse(ErrorCode::InvalidHeader, fault.words()),
        }
    }

    /// What the platform and this service can both do. At the service's address no profile is fetched, so nothing fails there for its sake.
    async fn negotiate(&self, asked: &Asked) -> Result<Negotiated, Fault> {
        match (&self.profiles, &asked.agent) {
            (Some(profiles), Some(agent)) if asked.place.form == Form::Protocol => {
                Ok(negotiate(profiles, agent).await?)
            }
            _ => Ok(Negotiated::granted()),
        }
    }

    /// Whether a platform is one of those that are served.
    fn trusts(&self, agent: &Agent) -> bool {
        let hosts = self.settings.profile_hosts.as_ref();
        hosts.is_none_or(|hosts| hosts.iter().any(|host| **host == *agent.host))
    }

    async fn create(&self, asked: &Asked, claim: Option<Claim>) -> Result<Answer, Fault> {
        let said = self.said(asked)?;
        let new = NewCheckout {
            account: asked.principal.account,
            credential: Some(CredentialId::from_bytes(asked.principal.credential.0)),
            platform: asked.agent.as_ref().map(|agent| agent.host.clone()),
            request: said.wish.clone(),
        };
        let answer = |view: &View| self.told(asked, view, &said.remarks, StatusCode::CREATED);
        let beside = |view: &View| keep(claim.as_ref(), &answer(view));
        let view = self.checkouts.begin(new, &beside).await?;
        Ok(answer(&view))
    }

    async fn get(&self, asked: &Asked) -> Result<Answer, Fault> {
        let view = self.find(asked).await?;
        let view = match self.checkouts.refresh(view.clone()).await {
            Ok(view) => view,
            // What is known is told; whoever wants to know more asks for completion.
            Err(CheckoutError::Provider(_)) => view,
            Err(error) => return Err(error.into()),
        };
        if asked.place.form == Form::Service && view.status() == Status::Canceled {
            let message =
                "The checkout session has ended, and nothing was charged by it. Begin another one.";
            return Err(ApiError::new(ErrorCode::SessionGone, message).into());
        }
        Ok(self.told(asked, &view, &[], StatusCode::OK))
    }

    async fn update(&self, asked: &Asked, claim: Option<Claim>) -> Result<Answer, Fault> {
        let view = self.find(asked).await?;
        let said = self.said(asked)?;
        let answer = |view: &View| self.told(asked, view, &said.remarks, StatusCode::OK);
        let beside = |view: &View| keep(claim.as_ref(), &answer(view));
        let view = self
            .checkouts
            .update(view, said.wish.clone(), &beside)
            .await?;
        Ok(answer(&view))
    }

    async fn complete(&self, asked: &Asked, claim: Option<Claim>) -> Result<Answer, Fault> {
        let mut view = self.find(asked).await?;
        request::complete(&asked.body)?;
        let mut again = false;
        if let Some(name) = &asked.name {
            // Noted before the provider is asked: should the process die over it, the same request is still not one that came too late.
            let name = digest(&[b"complete", name.as_bytes()]);
            (view, again) = self.checkouts.note_completion_request(view, name).await?;
        }
        let status = view.status();
        if status.is_final() && !(again && status == Status::Completed) {
            return Err(CheckoutError::NotModifiable(status).into());
        }
        let answer = |view: &View| self.told(asked, view, &[], StatusCode::OK);
        let beside = |view: &View| keep(claim.as_ref(), &answer(view));
        let view = self.checkouts.reconcile(view, &beside).await?;
        Ok(answer(&view))
    }

    async fn cancel(&self, asked: &Asked, claim: Option<Claim>) -> Result<Answer, Fault> {
        let view = self.find(asked).await?;
        request::cancel(&asked.body)?;
        let answer = |view: &View| self.told(asked, view, &[], StatusCode::OK);
        let beside = |view: &View| keep(claim.as_ref(), &answer(view));
        let view = self.checkouts.cancel(view, &beside).await?;
        Ok(answer(&view))
    }

    /// The checkout of the path. Another's is none: nobody learns that it is there.
    async fn find(&self, asked: &Asked) -> Result<View, Fault> {
        let id: Option<CheckoutId> = asked.id.parse().ok();
        let found = match id {
            Some(id) => self.checkouts.find(asked.principal.account, id).await?,
            None => None,
        };
        found.ok_or_else(|| match asked.place.form {
            Form::Service => ApiError::new(
                ErrorCode::NotFound,
                "There is no such checkout session of this account.",
            )
            .into(),
            Form::Protocol => Fault::Told(
                StatusCode::NOT_FOUND,
                wire::error(
                    "not_found",
                    "There is no such checkout session of this account.",
                    None,
                ),
            ),
        })
    }

    fn said(&self, asked: &Asked) -> Result<Said, Fault> {
        let product = &self.shown.plan.product;
        let said = match asked.place.form {
            Form::Service => request::service(&asked.body, product),
            Form::Protocol => request::protocol(&asked.body, product),
        };
        let message = || format!("There is no such product. The one on sale is `{product}`.");
        said.map_err(|unfit| match (unfit, asked.place.form) {
            (Unfit::Error(error), _) => error.into(),
            (Unfit::Unknown { path }, Form::Service) => {
                let param = path.trim_start_matches("$.").to_owned();
                ApiError::new(ErrorCode::NotFound, message())
                    .param(param)
                    .into()
            }
            (Unfit::Unknown { path }, Form::Protocol) => Fault::Told(
                StatusCode::OK,
                wire::error("not_found", &message(), Some(&path)),
            ),
        })
    }

    /// A checkout as an answer.
    fn told(&self, asked: &Asked, view: &View, remarks: &[Remark], status: StatusCode) -> Answer {
        let session = wire::protocol(view, &self.shown, &asked.negotiated, remarks);
        let (session, family) = match asked.place.form {
            Form::Service => (wire::service(session), "v1"),
            Form::Protocol => (session, VERSION),
        };
        let mut answer = told(status, &session);
        if status == StatusCode::CREATED {
            let base = &self.shown.base_url;
            let location = format!("{base}/ucp/{family}/checkout-sessions/{}", view.row.id);
            answer.fields.push((String::from("location"), location));
        }
        answer
    }
}

/// The signature of a request, as far as there is one: keys of platforms are not looked up, so none can be verified, and one that is not
/// verified is not passed over either.
fn check_signature(request: &Request) -> Result<(), ApiError> {
    let signed = ["signature", "signature-input"]
        .iter()
        .any(|name| request.headers.contains_key(*name));
    if !signed {
        return Ok(());
    }
    Err(ApiError::new(
        ErrorCode::KeyNotFound,
        "Keys of platforms are not looked up here, so the signature cannot be verified. Send the request without Signature and \
         Signature-Input; the bearer credential is enough.",
    ))
}

fn keep(claim: Option<&Claim>, answer: &Answer) -> Vec<Part> {
    claim
        .map(|claim| claim.answer_part(answer))
        .into_iter()
        .collect()
}

fn told(status: StatusCode, body: &Value) -> Answer {
    Answer {
        status: status.as_u16(),
        fields: Vec::new(),
        body: Arc::from(body.to_string().into_bytes()),
    }
}

fn reply(came: &Came) -> Reply {
    let answer = &came.answer;
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
    if came.replayed {
        reply
            .headers
            .insert(REPLAYED, HeaderValue::from_static("true"));
    }
    reply
}

/// An error with what has become of the payment, in the same object.
fn with_state(
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

/// Tells a platform its own name of the request again (UCP 2026-04-08, REST binding, `Request-Id`).
fn echo_request_id(exchange: &mut Exchange) {
    const FIELD: &str = "request-id";
    let sent = exchange.request.single(FIELD);
    let sound = sent.filter(|text| (1..=64).contains(&text.len()));
    if let Some(value) = sound.and_then(|text| HeaderValue::from_str(text).ok()) {
        exchange.reply_headers.insert(FIELD, value);
    }
}

/// The text in a path that names a checkout.
fn id_in(at: At, path: &str) -> &str {
    let mut segments = path.rsplit('/');
    match at {
        At::All => "",
        At::One => segments.next().unwrap_or_default(),
        At::Complete | At::Cancel => segments.nth(1).unwrap_or_default(),
    }
}

fn endpoint(form: Form, operation: Operation) -> Endpoint {
    match (form, operation) {
        (Form::Service, _) => Endpoint::Checkout,
        (Form::Protocol, Operation::Create) => Endpoint::UcpCreate,
        (Form::Protocol, Operation::Update) => Endpoint::UcpUpdate,
        (Form::Protocol, Operation::Complete) => Endpoint::UcpComplete,
        (Form::Protocol, Operation::Cancel | Operation::Get) => Endpoint::UcpCancel,
    }
}
