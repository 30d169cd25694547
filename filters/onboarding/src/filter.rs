//! The filter `onboarding`: serves generated documents.

use tollgate_filter::{
    ApiError, Body, Contract, ErrorCode, Exchange, FailureMode, Filter, Outcome, Phase, Step,
};
use tollgate_module::Snapshot;

use crate::documents::{Documents, PATHS};

/// Serves the document of one route.
pub struct Onboarding {
    documents: Snapshot<Documents>,
    /// The path of the document.
    path: &'static str,
}

/// A route path without a document.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`onboarding` has no document for `{path}`; it has `{}`", PATHS.join("`, `"))]
pub struct UnknownDocument {
    path: String,
}

impl Onboarding {
    /// The filter for a route path, which may be prefixed with the path of the service URL.
    pub fn new(documents: &Snapshot<Documents>, path: &str) -> Result<Onboarding, UnknownDocument> {
        let known = PATHS.into_iter().find(|known| path.ends_with(known));
        let known = known.ok_or_else(|| UnknownDocument {
            path: path.to_owned(),
        })?;
        Ok(Onboarding {
            documents: documents.clone(),
            path: known,
        })
    }
}

impl Filter for Onboarding {
    fn name(&self) -> &'static str {
        "onboarding"
    }

    fn contract(&self) -> Contract {
        Contract {
            phases: Phase::Request.into(),
            body: Body::Unread,
            on_failure: FailureMode::Deny,
        }
    }

    fn on_request<'a>(&'a self, exchange: &'a mut Exchange) -> Step<'a, Outcome> {
        Step::now(match self.documents.load().find(self.path) {
            Some(document) => Outcome::reply(document.reply(&exchange.request)),
            None => Outcome::refuse(ApiError::new(
                ErrorCode::NotFound,
                "This document is not configured on this service.",
            )),
        })
    }
}
