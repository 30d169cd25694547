//! Negotiation with a platform, and its error responses.

use std::time::Duration;

use serde_json::Value;
use tollgate_filter::{ApiError, ErrorCode};

use super::agent::{AgentError, UcpAgent};
use super::negotiation::Mismatch;
use super::profiles::{ProfileError, Profiles};
use super::wire::{self, Negotiated};
use super::{CHECKOUT, VERSIONS};

/// `Retry-After` while the plan cannot be sold.
const RETRY_AFTER: Duration = Duration::from_secs(60);

/// Failure of the negotiation (UCP 2026-04-08, Overview, "Error Codes").
#[derive(Debug)]
pub(crate) enum NegotiationError {
    /// An error response.
    Rejected(Box<ApiError>),
    /// A business outcome in the format of the protocol.
    BusinessOutcome(Value),
}

/// Negotiates capabilities with the profile that the platform names, at the address of a version.
pub(crate) async fn negotiate(
    profiles: &Profiles,
    agent: &UcpAgent,
    version: &'static str,
) -> Result<Negotiated, NegotiationError> {
    let outcome = profiles.at(&agent.profile).await.map_err(profile_error)?;
    let common = outcome.map_err(|mismatch| mismatch_error(mismatch, version))?;
    if common.get(CHECKOUT) != Some(&version) {
        // A profile of the other version.
        return Err(mismatch_error(Mismatch::Version, version));
    }
    Ok(Negotiated::of(version, &common))
}

fn profile_error(failure: ProfileError) -> NegotiationError {
    let error = |code, message: &'static str| ApiError::new(code, message).param("UCP-Agent");
    let error = match failure {
        ProfileError::Address => error(
            ErrorCode::InvalidProfileUrl,
            AgentError::Address.message(),
        ),
        ProfileError::Unreachable => error(
            ErrorCode::ProfileUnreachable,
            "The profile in UCP-Agent cannot be fetched. It must be served over https at a public address, as JSON, without a redirection. \
             Nothing was done.",
        )
        .retry_after(RETRY_AFTER),
        ProfileError::Busy => error(
            ErrorCode::ProfileUnreachable,
            "Too many profiles are being fetched. Nothing was done; send the request again in a moment.",
        )
        .retry_after(RETRY_AFTER),
        ProfileError::Malformed => error(
            ErrorCode::ProfileMalformed,
            "The document at the URL in UCP-Agent is not a profile of UCP. Nothing was done.",
        ),
    };
    NegotiationError::Rejected(Box::new(error))
}

fn mismatch_error(mismatch: Mismatch, version: &'static str) -> NegotiationError {
    match mismatch {
        Mismatch::Version => {
            let message = format!(
                "The platform's profile has another version than this address, which is of {version}; this service supports {}.",
                VERSIONS.join(" and ")
            );
            let error = ApiError::new(ErrorCode::VersionUnsupported, message).param("UCP-Agent");
            NegotiationError::Rejected(Box::new(error))
        }
        Mismatch::Capabilities => NegotiationError::BusinessOutcome(wire::error(
            version,
            "capabilities_incompatible",
            &format!(
                "The platform's profile does not list dev.ucp.shopping.checkout in version {version}, the only capability offered here."
            ),
            None,
        )),
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue, StatusCode};
    use serde_json::json;
    use tollgate_clock::{Clock, Timestamp};
    use tollgate_fetch::FetchError;

    use super::super::OLDER;
    use super::super::agent;
    use super::super::profiles::tests::{Has, SOUND, profiles};
    use super::*;

    const AGENT: &str = "profile=\"https://platform.example/.well-known/ucp\"";

    #[tokio::test]
    async fn a_platform_is_negotiated_with_by_its_profile() {
        let found = meet(AGENT, || Ok(SOUND)).await.expect("it can buy");
        assert_eq!(found, Negotiated::granted(OLDER));

        let cases: [(&str, Has, u16, &str); 6] = [
            (
                AGENT,
                || Err(FetchError::Status(StatusCode::FOUND)),
                424,
                "profile_unreachable",
            ),
            (
                AGENT,
                || Err(FetchError::TooMany),
                424,
                "profile_unreachable",
            ),
            (AGENT, || Ok("<html>"), 422, "profile_malformed"),
            (
                AGENT,
                || Ok(r#"{"ucp":{"version":"2026-01-11"}}"#),
                422,
                "version_unsupported",
            ),
            (
                AGENT,
                || Ok(r#"{"ucp":{"version":"2026-04-08"}}"#),
                200,
                "capabilities_incompatible",
            ),
            (
                "profile=\"https://192.0.2.1/p\"",
                || Ok(SOUND),
                400,
                "invalid_profile_url",
            ),
        ];
        for (named, has, status, code) in cases {
            match meet(named, has).await.expect_err(code) {
                NegotiationError::Rejected(error) => {
                    assert_eq!((error.status().as_u16(), error.code.word()), (status, code));
                }
                NegotiationError::BusinessOutcome(body) => {
                    assert_eq!((200, "capabilities_incompatible"), (status, code));
                    assert_eq!(
                        body["ucp"],
                        json!({"version": "2026-04-08", "status": "error"})
                    );
                    assert_eq!(body["messages"][0]["code"], code);
                }
            }
        }
    }

    async fn meet(named: &'static str, has: Has) -> Result<Negotiated, NegotiationError> {
        let mut headers = HeaderMap::new();
        headers.insert("ucp-agent", HeaderValue::from_static(named));
        let agent = agent::read(&headers, false).expect("it can be read");
        let (clock, _) = Clock::manual(Timestamp::from_secs(1));
        let (profiles, _) = profiles(has, clock);
        negotiate(&profiles, &agent.expect("it names one"), OLDER).await
    }
}
