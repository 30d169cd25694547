//! The filter `auth`.

use std::sync::Arc;

use tollgate_filter::{
    Body, CacheSharing, Clock, Contract, CredentialId, CredentialKind, Exchange, FailureMode,
    Filter, ModelAccess, Outcome, Phase, Principal, Request, Resource, Resources, Scopes,
    SpendingCap, Step, StillGood,
};
use tollgate_identity::{Credential, Credentials, Digest, Form};
use tollgate_store::{AccountStatus, CacheScope, CapPeriod};

use crate::bearer::Presented;
use crate::challenge::{AddressError, ByPath};
use crate::refusal::{Refusal, Told};
use crate::{RequiredAccess, Service};

/// Lets in requests whose credential works here, and says whose they are.
pub struct Auth {
    access: RequiredAccess,
    challenges: ByPath,
    forms: Arc<[Form]>,
    credentials: Arc<Credentials>,
    clock: Clock,
}

impl Auth {
    pub(crate) fn new(
        service: &Service,
        access: RequiredAccess,
        forms: Arc<[Form]>,
        credentials: Arc<Credentials>,
        clock: Clock,
    ) -> Result<Auth, AddressError> {
        Ok(Auth {
            access,
            challenges: ByPath::new(service, access)?,
            forms,
            credentials,
            clock,
        })
    }

    /// Unix microseconds, to judge a request by.
    pub(crate) fn now(&self, exchange: &mut Exchange) -> i64 {
        exchange.unix_micros(&self.clock)
    }

    /// Whose a request is that presents this at `now`.
    pub(crate) fn judge(
        &self,
        request: &Request,
        presented: Presented<'_>,
        now: i64,
    ) -> Result<Principal, Refusal> {
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
        let credential = self.find(text, now).ok_or(Refusal::Invalid)?;
        if !Resources::from_bits(credential.resources).has(self.access.resource) {
            return Err(Refusal::WrongResource);
        }
        match credential.account.status() {
            AccountStatus::Active => {}
            AccountStatus::Suspended => return Err(Refusal::Suspended),
            // An account that was left has no credentials any more.
            _ => return Err(Refusal::Invalid),
        }
        let principal = principal(&credential, now)?;
        match (principal.scopes.has_any(self.access.any_of), principal.kind) {
            (true, _) => Ok(principal),
            (false, CredentialKind::ApiKey) => Err(Refusal::KeyLacksScope),
            (false, CredentialKind::AccessToken) => Err(Refusal::TokenLacksScope),
        }
    }

    /// The credential of this text, if there is one and it works now.
    fn find(&self, text: &[u8], now: i64) -> Option<Arc<Credential>> {
        let digest = self.digest(text)?;
        let found = self.credentials.find(&digest)?;
        found.is_live(now).then(|| {
            found.used(now);
            found
        })
    }

    fn digest(&self, text: &[u8]) -> Option<Digest> {
        self.forms.iter().find_map(|form| form.digest(text))
    }

    /// For a request that was let in: whether it would be again.
    fn still_good(&self, request: &Request) -> Option<StillGood> {
        let Presented::Text(text) = Presented::read(&request.headers) else {
            return None;
        };
        let digest = self.digest(text)?;
        let (credentials, clock) = (self.credentials.clone(), self.clock.clone());
        Some(StillGood::new(move || {
            credentials.find(&digest).is_some_and(|found| {
                found.is_live(clock.unix_micros())
                    && found.account.status() == AccountStatus::Active
            })
        }))
    }

    /// How a credential begins that works here: beside the API that is a token and never a key.
    fn form_wanted(&self) -> &str {
        let wanted = match self.access.resource {
            Resource::Api => tollgate_store::CredentialKind::ApiKey,
            Resource::Mcp | Resource::McpAndroid => tollgate_store::CredentialKind::AccessToken,
        };
        let form = self.forms.iter().find(|form| form.kind() == wanted);
        form.map_or("", Form::prefix)
    }

    pub(crate) fn refuse(&self, refusal: Refusal, request: &Request, beside: &str) -> Outcome {
        let challenges = self.challenges.of(&request.path);
        let told = Told {
            challenges,
            access: self.access,
            form: self.form_wanted(),
            beside,
        };
        Outcome::refuse(refusal.error(&told))
    }
}

fn principal(credential: &Credential, now: i64) -> Result<Principal, Refusal> {
    Ok(Principal {
        account: credential.account.id(),
        credential: CredentialId(*credential.id.as_bytes()),
        kind: match credential.kind {
            tollgate_store::CredentialKind::ApiKey => CredentialKind::ApiKey,
            tollgate_store::CredentialKind::AccessToken => CredentialKind::AccessToken,
            // A kind that a later version has stored: here it is no credential.
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
            // The most careful of them also stands for one that a later version has stored.
            _ => CacheSharing::Off,
        },
        spending_cap: credential.spending_cap.map(|cap| SpendingCap {
            max: cap.max,
            // A period that a later version has stored is all time here, which lets it spend no more than that one.
            monthly: cap.period == CapPeriod::Month,
        }),
    })
}

impl Filter for Auth {
    fn name(&self) -> &'static str {
        "auth"
    }

    fn contract(&self) -> Contract {
        Contract {
            phases: Phase::Request.into(),
            body: Body::Unread,
            on_failure: FailureMode::Deny,
        }
    }

    fn on_request<'a>(&'a self, exchange: &'a mut Exchange) -> Step<'a, Outcome> {
        let now = self.now(exchange);
        let presented = Presented::read(&exchange.request.headers);
        Step::now(match self.judge(&exchange.request, presented, now) {
            Ok(principal) => {
                // Answers of the API end by themselves; a stream of a resource beside it may be listened to for hours.
                if self.access.resource != Resource::Api
                    && let Some(still_good) = self.still_good(&exchange.request)
                {
                    exchange.put(still_good);
                }
                exchange.put(principal);
                Outcome::Continue
            }
            Err(refusal) => self.refuse(refusal, &exchange.request, ""),
        })
    }
}
