//! An order: the account, the proof of control over the names, and the exchange of a request for the certificate (RFC 8555 section 7.4).

use std::time::Duration;

use instant_acme::{
    Account, AccountCredentials, AuthorizationStatus, CertificateIdentifier, ChallengeType, Error,
    ExternalAccountKey, Identifier, NewAccount, NewOrder, OrderStatus, Problem, RetryPolicy,
};
use rcgen::{CertificateParams, DistinguishedName, KeyPair};
use rustls::pki_types::ServerName;
use secrecy::ExposeSecret;
use tollgate_store::{CommitError, ReadError, Refusal};
use zeroize::Zeroizing;

use super::Context;
use super::challenges::SPREAD;
use super::client::DirectoryClient;
use super::records::{self, Response, StoredAccount};
use super::renewal::ATTEMPT_MAX;
use crate::config::{AcmeChallenge, AcmeOrder, Certificate};
use crate::telemetry;

/// Polls of an order's state: the first after 250 ms, the next after twice the wait before, or when the authority says.
const POLLS: RetryPolicy = RetryPolicy::new().timeout(Duration::from_secs(100));

/// Longest logged and stored part of an authority's message, in characters.
const MESSAGE_MAX: usize = 400;

/// A new certificate.
pub(super) struct Issued {
    pub(super) certificate: Certificate,
    /// PEM.
    pub(super) chain: String,
    /// PKCS #8 in DER.
    pub(super) key: Zeroizing<Vec<u8>>,
}

/// Why an order failed.
#[derive(Debug)]
pub(super) struct OrderError {
    /// The cause, for the log.
    pub(super) cause: String,
    /// How long the authority wants no further order.
    pub(super) retry_after: Option<Duration>,
}

/// The parts of the cause.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{0}")]
    Authority(String),
    #[error(transparent)]
    Acme(#[from] Error),
    #[error("the account could not be read")]
    Read(#[from] ReadError),
    #[error("the account could not be stored")]
    Commit(#[from] CommitError),
    #[error("the responses to the challenges could not be stored for the other nodes")]
    Share(#[source] CommitError),
    #[error("the request for the certificate could not be made")]
    Request(#[from] rcgen::Error),
    #[error("the HTTP client could not be made")]
    Client(#[from] std::io::Error),
}

/// The type of an error of the authority (RFC 8555 section 6.7), without its prefix.
fn kind(error: &Failure) -> Option<&str> {
    match error {
        Failure::Acme(Error::Api(problem)) => problem
            .r#type
            .as_deref()?
            .strip_prefix("urn:ietf:params:acme:error:"),
        _ => None,
    }
}

/// Obtains a certificate. `replaces`: the renewed certificate, for authorities with renewal information (RFC 9773 section 5).
pub(super) async fn obtain(
    context: &Context,
    order: &AcmeOrder,
    replaces: Option<&Certificate>,
) -> Result<Issued, OrderError> {
    let client = match DirectoryClient::new(order) {
        Ok(client) => client,
        Err(error) => {
            return Err(OrderError {
                cause: telemetry::chain(&Failure::Client(error)),
                retry_after: None,
            });
        }
    };
    let issued = attempt(context, order, &client, replaces).await;
    issued.map_err(|error| OrderError {
        cause: message(&error),
        retry_after: client.retry_after(),
    })
}

async fn attempt(
    context: &Context,
    order: &AcmeOrder,
    client: &DirectoryClient,
    replaces: Option<&Certificate>,
) -> Result<Issued, Failure> {
    let mut placed = place_by_account(context, order, client, replaces).await?;
    let mut responses = Vec::new();
    let mut authorizations = placed.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization?;
        if authorization.status != AuthorizationStatus::Valid {
            responses.push(response(&mut authorization, order)?);
        }
    }
    let answers = responses.iter().map(Response::to_challenge);
    let answers = answers.collect::<Result<Vec<_>, _>>()?;
    // Until the end of this function.
    let _answered = context.deps.challenges.answer(answers);
    if context.deps.store.has_allotments() && !responses.is_empty() {
        let expires_at = context.deps.clock.now() + ATTEMPT_MAX;
        let shared = context.records.share(order, &responses, expires_at);
        shared.await.map_err(Failure::Share)?;
        tokio::time::sleep(SPREAD).await;
    }
    request_validation(&mut placed, order).await?;
    wait_until_ready(&mut placed).await?;
    finalize(&mut placed, order).await
}

/// Places the order by the stored account, or by a new account where the authority does not know the stored account.
async fn place_by_account(
    context: &Context,
    order: &AcmeOrder,
    client: &DirectoryClient,
    replaces: Option<&Certificate>,
) -> Result<instant_acme::Order, Failure> {
    let mut account = account(context, order, client, false).await?;
    let mut placed = place(&account, order, replaces).await;
    if placed
        .as_ref()
        .is_err_and(|error| kind(error) == Some("accountDoesNotExist"))
    {
        // The authority has forgotten the account, as after a reset.
        account = self::account(context, order, client, true).await?;
        placed = place(&account, order, replaces).await;
    }
    placed
}

/// Has the authority validate every name without a valid authorization.
async fn request_validation(
    placed: &mut instant_acme::Order,
    order: &AcmeOrder,
) -> Result<(), Failure> {
    let mut authorizations = placed.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization?;
        if authorization.status != AuthorizationStatus::Valid {
            let challenge = authorization.challenge(challenge_type(order));
            let mut challenge = challenge.ok_or_else(|| not_offered(order))?;
            let name = challenge.identifier().to_string();
            let ready = challenge.set_ready().await;
            ready.map_err(|error| match error {
                // The authority may have tried, and failed, before it answers.
                Error::Api(problem) if is_of_validation(&problem) => {
                    not_validated(&name, &text_of(&problem))
                }
                other => other.into(),
            })?;
        }
    }
    Ok(())
}

/// Waits until every name is validated.
async fn wait_until_ready(placed: &mut instant_acme::Order) -> Result<(), Failure> {
    let ready = match placed.state().status {
        // Every name was validated before.
        OrderStatus::Ready => Ok(OrderStatus::Ready),
        _ => placed.poll_ready(&POLLS).await,
    };
    if matches!(ready, Ok(OrderStatus::Ready)) {
        return Ok(());
    }
    let refused = refused_challenges(placed).await;
    Err(match (refused, ready) {
        (Some(refused), _) => refused,
        (None, Err(error)) => Failure::Acme(error),
        (None, Ok(status)) => Failure::Authority(format!("the order is {status:?}")),
    })
}

/// Exchanges a request with a new key for the certificate.
async fn finalize(placed: &mut instant_acme::Order, order: &AcmeOrder) -> Result<Issued, Failure> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(names(order))?;
    params.distinguished_name = DistinguishedName::new();
    let request = params.serialize_request(&key)?;
    placed.finalize_csr(request.der()).await?;
    let chain = placed.poll_certificate(&POLLS).await?;
    let key = Zeroizing::new(key.serialize_der());
    let certificate = records::parse(order, chain.as_bytes(), key.to_vec())
        .and_then(|certificate| is_as_ordered(order, certificate))
        .map_err(|cause| {
            Failure::Authority(format!("the issued certificate cannot be used: {cause}"))
        })?;
    Ok(Issued {
        certificate,
        chain,
        key,
    })
}

/// The account at the authority, for renewal information.
pub(super) async fn open_account(context: &Context, order: &AcmeOrder) -> Result<Account, String> {
    let client = DirectoryClient::new(order).map_err(|error| error.to_string())?;
    let account = account(context, order, &client, false).await;
    account.map_err(|error| message(&error))
}

/// The stored account, or a new account. `is_lost`: the authority does not know the stored account.
async fn account(
    context: &Context,
    order: &AcmeOrder,
    client: &DirectoryClient,
    is_lost: bool,
) -> Result<Account, Failure> {
    let builder = Account::builder_with_http(Box::new(client.clone()));
    let contact: Vec<&str> = order.contact.iter().map(String::as_str).collect();
    let stored = context.records.account(order).await?;
    if let Some((row, mut stored)) = stored.as_ref().map(|(row, stored)| (row, stored.clone()))
        && !is_lost
        && let Ok(credentials) =
            serde_json::from_value::<AccountCredentials>(stored.credentials.clone())
    {
        let account = builder.from_credentials(credentials).await?;
        if stored.contact != order.contact {
            account.update_contacts(&contact).await?;
            stored.contact.clone_from(&order.contact);
            let now = context.deps.clock.now();
            let changed = context
                .records
                .store_account(order, Some(row), &stored, now);
            tolerate_conflict(changed.await)?;
        }
        return Ok(account);
    }
    let new = NewAccount {
        contact: &contact,
        // The check of the settings requires the agreement.
        terms_of_service_agreed: true,
        only_return_existing: false,
    };
    let external = order.external_account.as_ref().map(|account| {
        ExternalAccountKey::new(account.key_id.to_string(), account.mac_key.expose_secret())
    });
    let directory = order.directory.to_string();
    let created = builder.create(&new, directory, external.as_ref());
    let (account, credentials) = created.await?;
    let stored_now = StoredAccount {
        credentials: serde_json::to_value(&credentials).map_err(Error::Json)?,
        contact: order.contact.clone(),
    };
    let now = context.deps.clock.now();
    let earlier = stored.as_ref().map(|(row, _)| row);
    let written = context
        .records
        .store_account(order, earlier, &stored_now, now);
    // A concurrent order has stored an account: this order may use its new account too.
    tolerate_conflict(written.await)?;
    tracing::info!(directory = %order.directory, account = account.id(), "created account at certificate authority");
    Ok(account)
}

fn tolerate_conflict(written: Result<(), CommitError>) -> Result<(), CommitError> {
    match written {
        Err(CommitError::Refused(Refusal::AcmeConflict)) => Ok(()),
        other => other,
    }
}

async fn place(
    account: &Account,
    order: &AcmeOrder,
    replaces: Option<&Certificate>,
) -> Result<instant_acme::Order, Failure> {
    let identifiers: Vec<Identifier> = names(order).into_iter().map(Identifier::Dns).collect();
    let id = replaces.and_then(identifier);
    if let Some(id) = id {
        match account
            .new_order(&NewOrder::new(&identifiers).replaces(id))
            .await
        {
            // The authority does not accept a replacement, such as of a certificate that was replaced already.
            Err(Error::Api(problem)) if !is_lasting(&problem) => {}
            Err(Error::Unsupported(_)) => {}
            other => return other.map_err(Failure::Acme),
        }
    }
    let placed = account.new_order(&NewOrder::new(&identifiers)).await;
    placed.map_err(Failure::Acme)
}

/// Whether an order without `replaces` would fail with an equal error.
fn is_lasting(problem: &Problem) -> bool {
    let kind = problem.r#type.as_deref().unwrap_or_default();
    ["rateLimited", "accountDoesNotExist", "unauthorized"]
        .iter()
        .any(|end| kind.ends_with(end))
}

/// The identifier of a certificate in renewal information (RFC 9773 section 4.1); `None` for a certificate without an authority key
/// identifier.
pub(super) fn identifier(certificate: &Certificate) -> Option<CertificateIdentifier<'static>> {
    let end = certificate.key.end_entity_cert().ok()?;
    let id = CertificateIdentifier::try_from(end).ok()?;
    Some(id.into_owned())
}

fn names(order: &AcmeOrder) -> Vec<String> {
    order.names.iter().map(ToString::to_string).collect()
}

fn challenge_type(order: &AcmeOrder) -> ChallengeType {
    match order.challenge {
        AcmeChallenge::Http01 => ChallengeType::Http01,
        AcmeChallenge::TlsAlpn01 => ChallengeType::TlsAlpn01,
    }
}

fn not_offered(order: &AcmeOrder) -> Failure {
    Failure::Authority(format!(
        "the authority offers no challenge `{}`; set `challenge` to another one",
        order.challenge.word()
    ))
}

/// The response to the challenge of an authorization.
fn response<'a>(
    authorization: &'a mut instant_acme::AuthorizationHandle<'a>,
    order: &AcmeOrder,
) -> Result<Response, Failure> {
    let challenge = authorization.challenge(challenge_type(order));
    let challenge = challenge.ok_or_else(|| not_offered(order))?;
    let key_authorization = challenge.key_authorization();
    Ok(match order.challenge {
        AcmeChallenge::Http01 => Response::Http {
            token: challenge.token.clone(),
            body: key_authorization.as_str().to_owned(),
        },
        AcmeChallenge::TlsAlpn01 => Response::Tls {
            name: challenge.identifier().to_string(),
            digest: key_authorization.digest().as_ref().to_vec(),
        },
    })
}

/// The authority's errors for the refused challenges.
async fn refused_challenges(placed: &mut instant_acme::Order) -> Option<Failure> {
    let mut found = Vec::new();
    let mut authorizations = placed.authorizations();
    while let Some(Ok(mut authorization)) = authorizations.next().await {
        let Ok(state) = authorization.refresh().await else {
            continue;
        };
        let errors = state.challenges.iter();
        let errors = errors.filter_map(|challenge| challenge.error.as_ref());
        let errors: Vec<String> = errors.map(text_of).collect();
        if !errors.is_empty() {
            let name = state.identifier().to_string();
            found.push(not_validated(&name, &errors.join("; ")).to_string());
        }
    }
    (!found.is_empty()).then(|| Failure::Authority(found.join("; ")))
}

/// Whether an error says why a name could not be validated (RFC 8555 section 6.7).
fn is_of_validation(problem: &Problem) -> bool {
    let kind = problem.r#type.as_deref().unwrap_or_default();
    let kinds = [
        "caa",
        "connection",
        "dns",
        "incorrectResponse",
        "tls",
        "unauthorized",
    ];
    kinds.iter().any(|one| kind.ends_with(&format!(":{one}")))
}

fn not_validated(name: &str, why: &str) -> Failure {
    Failure::Authority(format!("the authority could not validate `{name}`: {why}"))
}

/// Whether a certificate is for every name of its order.
fn is_as_ordered(order: &AcmeOrder, certificate: Certificate) -> Result<Certificate, String> {
    let missing = order.names.iter().find(|name| {
        let name = ServerName::try_from(&***name);
        !name.is_ok_and(|name| certificate.serves(&name))
    });
    match missing {
        None => Ok(certificate),
        Some(name) => Err(format!("it is not for `{name}`")),
    }
}

fn text_of(problem: &Problem) -> String {
    let kind = problem.r#type.as_deref().unwrap_or("error without a type");
    let kind = kind
        .strip_prefix("urn:ietf:params:acme:error:")
        .unwrap_or(kind);
    let mut text = format!(
        "{kind}: {}",
        problem.detail.as_deref().unwrap_or("without a reason")
    );
    for part in &problem.subproblems {
        text.push_str("; ");
        text.push_str(part.detail.as_deref().unwrap_or_default());
    }
    text
}

fn message(error: &Failure) -> String {
    let text = match error {
        Failure::Acme(Error::Api(problem)) => {
            format!("the authority refused: {}", text_of(problem))
        }
        Failure::Acme(Error::Other(cause)) => {
            let mut text = cause.to_string();
            let mut source = cause.source();
            while let Some(cause) = source {
                text = format!("{text}: {cause}");
                source = cause.source();
            }
            text
        }
        other => telemetry::chain(other),
    };
    clean(&text)
}

/// The text of another party, for a line of the log.
fn clean(text: &str) -> String {
    let text = text.chars().filter(|letter| !letter.is_control());
    text.take(MESSAGE_MAX).collect()
}
