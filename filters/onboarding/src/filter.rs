//! The filter `onboarding`: serves generated documents.

use std::sync::Arc;

use tollgate_filter::{
    ApiError, Body, Contract, Document, ErrorCode, Exchange, FailureMode, Filter, Outcome, Phase,
    Step,
};

use crate::documents::{Documents, PATHS};

/// Serves the document of one route.
pub struct Onboarding {
    document: Option<Document>,
}

/// A route path without a document.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`onboarding` has no document for `{path}`; it has `{}`", PATHS.join("`, `"))]
pub struct UnknownDocument {
    path: String,
}

impl Onboarding {
    /// The filter for a route path, which may be prefixed with the path of the service URL.
    pub fn new(documents: &Arc<Documents>, path: &str) -> Result<Onboarding, UnknownDocument> {
        let known = PATHS.into_iter().find(|known| path.ends_with(known));
        let known = known.ok_or_else(|| UnknownDocument {
            path: path.to_owned(),
        })?;
        Ok(Onboarding {
            document: documents.find(known).cloned(),
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
        Step::now(match &self.document {
            Some(document) => Outcome::reply(document.reply(&exchange.request)),
            None => Outcome::refuse(ApiError::new(
                ErrorCode::NotFound,
                "This document is not configured on this service.",
            )),
        })
    }
}
