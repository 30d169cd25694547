#![doc = include_str!("../README.md")]

mod bearer;
mod challenge;
mod filter;
#[doc(hidden)]
pub mod fuzz;
mod key_revocation;
mod look_up_misses;
mod module;
mod payment;
mod refusal;

use std::sync::Arc;

use tollgate_clock::Clock;
use tollgate_filter::{RequiredAccess, ServiceIdentity};
use tollgate_identity::{Credentials, Form, RefusedRequests};

pub use challenge::AddressError;
pub use filter::Auth;
pub use key_revocation::KeyRevocation;
pub use module::AuthModule;
pub use payment::PaymentAuth;

/// Builds the filters of this crate, one for each access requirement of a route.
pub struct Auths {
    service: ServiceIdentity,
    /// Every credential format of the service.
    forms: Arc<[Form]>,
    credentials: Arc<Credentials>,
    refused: Arc<RefusedRequests>,
    misses: Arc<look_up_misses::LookUpMisses>,
    clock: Clock,
}

impl Auths {
    /// A builder of filters that look credentials up in `credentials`.
    pub fn new(service: ServiceIdentity, credentials: Arc<Credentials>, clock: Clock) -> Auths {
        let forms = Arc::from([
            Form::api_key(&service.name),
            Form::access_token(&service.name),
        ]);
        Auths {
            service,
            forms,
            credentials,
            refused: Arc::default(),
            misses: Arc::default(),
            clock,
        }
    }

    /// Collects the refused requests of accounts in `refused`. By default the requests are dropped with the filters.
    #[must_use]
    pub fn refused(self, refused: Arc<RefusedRequests>) -> Auths {
        Auths { refused, ..self }
    }

    /// The filter `auth` for routes with this required access.
    pub fn auth(&self, access: RequiredAccess) -> Result<Auth, AddressError> {
        Auth::new(
            &self.service,
            access,
            self.forms.clone(),
            self.credentials.clone(),
            self.refused.clone(),
            self.misses.clone(),
            self.clock.clone(),
        )
    }

    /// The filter `auth` for routes with this required access and a payment credential in `Authorization`.
    pub fn beside_payment(&self, access: RequiredAccess) -> Result<PaymentAuth, AddressError> {
        Ok(PaymentAuth::new(self.auth(access)?, &self.service.name))
    }
}
