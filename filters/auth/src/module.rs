//! The module `auth`: the filter for each access requirement of a route, and the filter for the revocation of a key.

use std::sync::Arc;

use tollgate_filter::{PaymentPaths, ServiceIdentity};
use tollgate_identity::Form;
use tollgate_module::{Build, BuildError, FilterType, Module, RouteContext};

use crate::{Auths, KeyRevocation};

/// Authentication by API key or access token.
pub struct AuthModule;

impl Module for AuthModule {
    fn name(&self) -> &'static str {
        "auth"
    }

    fn filters(&self) -> Vec<FilterType> {
        vec![
            FilterType::named("auth"),
            FilterType::named("key-revocation").after(&["rate-limit"]),
        ]
    }

    fn build(&self, build: &mut Build<'_>) -> Result<(), BuildError> {
        let auths = Auths::new(build.get()?, build.get()?, build.get()?).refused(build.get()?);
        build.filter("auth", move |route| {
            let Some(access) = route.access else {
                return Err(BuildError::new(
                    "`auth` requires a scope; give the route a `scope` or `scopes_any`",
                ));
            };
            Ok(match takes_payment(route) {
                true => Arc::new(auths.beside_payment(access).map_err(BuildError::of)?),
                false => Arc::new(auths.auth(access).map_err(BuildError::of)?),
            })
        });
        let service: ServiceIdentity = build.get()?;
        let form = Form::api_key(&service.name);
        let revocation = KeyRevocation::new(form, build.get()?, build.get()?, build.get()?);
        let revocation = Arc::new(revocation);
        build.filter("key-revocation", move |_| Ok(revocation.clone()));
        Ok(())
    }
}

/// Whether `Authorization` has a payment credential on this route, and another field the account's credential.
fn takes_payment(route: &RouteContext<'_>) -> bool {
    let paths = route.services.find::<PaymentPaths>();
    route.has_filter("pay") && paths.is_some_and(|PaymentPaths(shares)| shares(route.path))
}
