#![doc = include_str!("../README.md")]

mod access;
mod bearer;
mod challenge;
mod filter;
mod payment;
mod refusal;

use std::sync::Arc;

use tollgate_filter::Clock;
use tollgate_identity::{Credentials, Form};

pub use access::{AccessError, RequiredAccess};
pub use challenge::AddressError;
pub use filter::Auth;
pub use payment::PaymentAuth;

/// Who the service is: its name in credentials, and the addresses that refusals point to.
#[derive(Clone, Debug)]
pub struct Service {
    /// The short word in `sk-svc-`.
    pub name: String,
    /// The address of the API, without a slash at its end.
    pub base_url: String,
    /// The address of discovery, without a slash at its end.
    pub root_url: String,
}

/// Makes the filters of this crate, one for each kind of access that routes need.
pub struct Auths {
    service: Service,
    /// Every form that a credential can have here.
    forms: Arc<[Form]>,
    credentials: Arc<Credentials>,
    clock: Clock,
}

impl Auths {
    /// A maker of filters that look credentials up in `credentials`.
    pub fn new(service: Service, credentials: Arc<Credentials>, clock: Clock) -> Auths {
        let forms = Arc::from([
            Form::api_key(&service.name),
            Form::access_token(&service.name),
        ]);
        Auths {
            service,
            forms,
            credentials,
            clock,
        }
    }

    /// The filter `auth` for routes that need this access.
    pub fn auth(&self, access: RequiredAccess) -> Result<Auth, AddressError> {
        Auth::new(
            &self.service,
            access,
            self.forms.clone(),
            self.credentials.clone(),
            self.clock.clone(),
        )
    }

    /// The filter `auth` for routes that need this access and take a proof of payment in `Authorization`.
    pub fn beside_payment(&self, access: RequiredAccess) -> Result<PaymentAuth, AddressError> {
        Ok(PaymentAuth::new(self.auth(access)?, &self.service.name))
    }
}
