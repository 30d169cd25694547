//! The filter `auth`: authenticates and authorizes a request by its bearer credential.

use std::sync::Arc;

use tollgate_clock::{Clock, Timestamp};
use tollgate_filter::{
    Body, CacheSharing, ClientAddress, Contract, CredentialCheck, CredentialKind, Ending,
    ErrorCode, Exchange, FailureMode, Filter, FilterError, ModelAccess, Outcome, Phase, Principal,
    Request, RequiredAccess, Resource, Resources, Scope, Scopes, ServiceIdentity, Step,
};
use tollgate_identity::{Credential, Credentials, Digest, Form, RefusedRequests};
use tollgate_store::{AccountStatus, CacheScope, RefusalRow};

use crate::bearer::Presented;
use crate::challenge::{AddressError, ByPath};
use crate::look_up_misses::LookUpMisses;
use crate::refusal::{Refusal, RefusalContext};

/// Admits requests with a valid credential for the route, and sets their principal.
pub struct Auth {
    access: RequiredAccess,
    challenges: ByPath,
    keys_url: Box<str>,
    forms: Arc<[Form]>,
    credentials: Arc<Credentials>,
    refused: Arc<RefusedRequests>,
    misses: Arc<LookUpMisses>,
    clock: Clock,
}

impl Auth {
    pub(crate) fn new(
        service: &ServiceIdentity,
        access: RequiredAccess,
        forms: Arc<[Form]>,
        credentials: Arc<Credentials>,
        refused: Arc<RefusedRequests>,
        misses: Arc<LookUpMisses>,
        clock: Clock,
    ) -> Result<Auth, AddressError> {
        Ok(Auth {
            access,
            challenges: ByPath::new(service, access)?,
            keys_url: format!("{}/keys", service.base_url).into(),
            forms,
            credentials,
            refused,
            misses,
            clock,
        })
    }

    /// Collects an account's failed request, for the owner. Requests of purchases are excluded: a 402 is the offer there.
    fn collect_refused(&self, exchange: &mut Exchange) {
        if self.access.any_of.has(Scope::CommerceSubscribe) {
            return;
        }
        let Some(principal) = exchange.get::<Principal>() else {
            return;
        };
        let (account, credential) = (principal.account, principal.credential);
        let elapsed = exchange.elapsed(&self.clock);
        let record = &exchange.record;
        let took = elapsed.saturating_sub(record.started).as_micros();
        let code = record.error.map_or("error", ErrorCode::word);
        let row = RefusalRow {
            id: exchange.request.id,
            account,
            credential: Some(credential),
            model: record.model.clone(),
            status: record.status,
            code: Arc::from(code),
            total_us: Some(u64::try_from(took).unwrap_or(u64::MAX)),
            requests: 1,
            at: exchange.now(&self.clock),
        };
        self.refused.add(row);
    }

    /// The current time.
    pub(crate) fn now(&self, exchange: &mut Exchange) -> Timestamp {
        exchange.now(&self.clock)
    }

    /// The digest of a request's credential.
    pub(crate) fn digest_of(
        &self,
        request: &Request,
        presented: Presented<'_>,
    ) -> Result<Digest, Refusal> {
        if let Some(query) = request.query.as_deref()
            && self.forms.iter().any(|form| query.contains(form.prefix()))
        {
            let also_in_header = presented != Presented::Nothing;
            return Err(Refusal::InAddress { also_in_header });
        }
        let text = match presented {
            Presented::Text(text) => text,
            Presented::Nothing => return Err(Refusal::Missing),
            Presented::Unreadable(why) => return Err(Refusal::Unreadable(why)),
        };
        if !self.credentials.is_current() {
            return Err(Refusal::Outdated);
        }
        self.digest(text).ok_or(Refusal::Invalid)
    }

    /// The credential with this digest, if in memory.
    pub(crate) fn find(&self, digest: &Digest) -> Option<Arc<Credential>> {
        self.credentials.find(digest)
    }

    /// The credential with this digest, from the store. An address has a limit of look-ups for unknown credentials.
    pub(crate) async fn look_up(
        &self,
        digest: Digest,
        client: ClientAddress,
        now: Timestamp,
    ) -> Result<Arc<Credential>, Refusal> {
        // A look-up without a separate read is not counted: many requests may present one credential concurrently.
        let read = if self.credentials.needs_read(&digest, now) {
            Some(self.misses.begin(client.limited_prefix(), now)?)
        } else {
            None
        };
        let found = self.credentials.look_up(digest, now).await;
        if !matches!(found, Ok(None))
            && let Some(read) = read
        {
            read.found();
        }
        match found {
            Ok(found) => found.ok_or(Refusal::Invalid),
            Err(error) => {
                tracing::warn!(%error, "looking up a credential failed");
                Err(Refusal::NotRead)
            }
        }
    }

    /// The principal of a request with this credential at `now`.
    pub(crate) fn judge(
        &self,
        credential: &Credential,
        now: Timestamp,
    ) -> Result<Principal, Refusal> {
        if !credential.is_live(now) {
            return Err(Refusal::Invalid);
        }
        credential.used(now);
        if !Resources::from_bits(credential.resources).has(self.access.resource) {
            return Err(Refusal::WrongResource);
        }
        match credential.account.status() {
            AccountStatus::Active => {}
            AccountStatus::Suspended => return Err(Refusal::Suspended),
            // A closed account has no valid credentials.
            _ => return Err(Refusal::Invalid),
        }
        let principal = principal(credential, now)?;
        match (principal.scopes.has_any(self.access.any_of), principal.kind) {
            (true, _) => Ok(principal),
            (false, CredentialKind::ApiKey) => Err(Refusal::KeyLacksScope),
            (false, CredentialKind::AccessToken) => Err(Refusal::TokenLacksScope),
        }
    }

    /// [`judge`](Self::judge) for a served request; a stream of the API ends when the account is suspended. The index changes the account for as
    /// long as the check has its reference, so the credential need not stay in memory.
    fn admit(
        &self,
        exchange: &mut Exchange,
        credential: &Credential,
        now: Timestamp,
    ) -> Result<Principal, Refusal> {
        let principal = self.judge(credential, now)?;
        if self.access.resource == Resource::Api {
            let account = Arc::clone(&credential.account);
            let is_active = move || account.status() == AccountStatus::Active;
            exchange.put(CredentialCheck::new(is_active));
        }
        Ok(principal)
    }

    fn digest(&self, text: &[u8]) -> Option<Digest> {
        self.forms.iter().find_map(|form| form.digest(text))
    }

    /// For an admitted request: a check to repeat the decision later.
    fn credential_check(&self, request: &Request) -> Option<CredentialCheck> {
        let Presented::Text(text) = Presented::read(&request.headers) else {
            return None;
        };
        let digest = self.digest(text)?;
        let (credentials, clock) = (self.credentials.clone(), self.clock.clone());
        Some(CredentialCheck::new(move || {
            let now = clock.now();
            credentials.find(&digest).is_some_and(|found| {
                // An open stream keeps the credential in memory.
                found.used(now);
                found.is_live(now) && found.account.status() == AccountStatus::Active
            })
        }))
    }

    fn decide(
        &self,
        exchange: &mut Exchange,
        judged: Result<Principal, Refusal>,
    ) -> Result<Outcome, FilterError> {
        Ok(match judged {
            Ok(principal) => {
                // Responses of the API end by themselves; a stream of another resource may stay open for hours.
                if self.access.resource != Resource::Api
                    && let Some(credential_check) = self.credential_check(&exchange.request)
                {
                    exchange.put(credential_check);
                }
                exchange.put(principal);
                Outcome::Continue
            }
            Err(refusal) => self.refuse(refusal, &exchange.request, ""),
        })
    }

    /// The prefix of a credential that is valid here: for any resource but the API a token, never a key.
    fn form_wanted(&self) -> &str {
        let wanted = match self.access.resource {
            Resource::Api => tollgate_store::CredentialKind::ApiKey,
            Resource::Mcp | Resource::McpAndroid => tollgate_store::CredentialKind::AccessToken,
        };
        let form = self.forms.iter().find(|form| form.kind() == wanted);
        form.map_or("", Form::prefix)
    }

    /// Whether a field for credentials has the text of an access token.
    fn has_token(&self, request: &Request, other_field: &str) -> bool {
        let is_token = |form: &&Form| form.kind() == tollgate_store::CredentialKind::AccessToken;
        let Some(form) = self.forms.iter().find(is_token) else {
            return false;
        };
        let has = |name: &str| {
            let mut values = request.headers.get_all(name).iter();
            values.any(|value| {
                value
                    .to_str()
                    .is_ok_and(|text| text.contains(form.prefix()))
            })
        };
        has("authorization") || (!other_field.is_empty() && has(other_field))
    }

    pub(crate) fn refuse(&self, refusal: Refusal, request: &Request, other_field: &str) -> Outcome {
        let challenges = self.challenges.of(&request.path);
        let context = RefusalContext {
            challenges,
            access: self.access,
            form: self.form_wanted(),
            keys_url: &self.keys_url,
            other_field,
            has_token: self.has_token(request, other_field),
        };
        Outcome::refuse(refusal.error(&context))
    }
}

fn principal(credential: &Credential, now: Timestamp) -> Result<Principal, Refusal> {
    Ok(Principal {
        account: credential.account.id(),
        credential: credential.id,
        kind: match credential.kind {
            tollgate_store::CredentialKind::ApiKey => CredentialKind::ApiKey,
            tollgate_store::CredentialKind::AccessToken => CredentialKind::AccessToken,
            // A kind stored by a later version: invalid here.
            _ => return Err(Refusal::Invalid),
        },
        scopes: Scopes::from_bits(credential.scopes),
        class: credential.account.class(now),
        models: match &credential.models {
            None => ModelAccess::All,
            Some(models) => ModelAccess::Only(models.clone()),
        },
        sharing: match credential.account.cache_scope() {
            CacheScope::Shared => CacheSharing::Shared,
            CacheScope::Account => CacheSharing::Account,
            // The strictest value also replaces a value stored by a later version.
            _ => CacheSharing::Off,
        },
        spending_cap: credential.spending_cap,
    })
}

impl Filter for Auth {
    fn name(&self) -> &'static str {
        "auth"
    }

    fn on_end(&self, exchange: &mut Exchange, _: Ending) {
        if exchange.record.status >= 400 {
            self.collect_refused(exchange);
        }
    }

    fn contract(&self) -> Contract {
        Contract {
            phases: Phase::Request | Phase::End,
            body: Body::Unread,
            on_failure: FailureMode::Deny,
        }
    }

    fn on_request<'a>(&'a self, exchange: &'a mut Exchange) -> Step<'a, Outcome> {
        let now = self.now(exchange);
        let presented = Presented::read(&exchange.request.headers);
        let digest = match self.digest_of(&exchange.request, presented) {
            Ok(digest) => digest,
            Err(refusal) => return Step::Now(self.decide(exchange, Err(refusal))),
        };
        if let Some(credential) = self.find(&digest) {
            let judged = self.admit(exchange, &credential, now);
            return Step::Now(self.decide(exchange, judged));
        }
        Step::later(async move {
            let client = exchange.request.client;
            let found = self.look_up(digest, client, now).await;
            exchange.invalidate_now();
            let now = self.now(exchange);
            let judged = found.and_then(|credential| self.admit(exchange, &credential, now));
            self.decide(exchange, judged)
        })
    }
}
