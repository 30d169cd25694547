//! On which terms a platform is dealt with, and what it is told where there are none.

use std::time::Duration;

use serde_json::Value;
use tollgate_filter::{ApiError, ErrorCode};

use super::agent::{Agent, AgentFault};
use super::negotiation::Mismatch;
use super::profiles::{ProfileFault, Profiles};
use super::wire::{self, Negotiated};

/// After how long to ask again where a profile is not to be had: failures are kept for so long.
const LATER: Duration = Duration::from_secs(60);

/// Why a platform is not dealt with (UCP 2026-04-08, Overview, "Error Codes").
#[derive(Debug)]
pub(crate) enum Disagreement {
    /// It is refused.
    Refused(Box<ApiError>),
    /// It is told, in the form for business outcomes.
    Told(Value),
}

/// What a platform and this service can both do, by the profile that it names.
pub(crate) async fn negotiate(
    profiles: &Profiles,
    agent: &Agent,
) -> Result<Negotiated, Disagreement> {
    let met = profiles.at(&agent.profile).await.map_err(not_had)?;
    let common = met.map_err(nothing_common)?;
    Ok(Negotiated::of(&common))
}

fn not_had(fault: ProfileFault) -> Disagreement {
    let error = |code, words: &'static str| ApiError::new(code, words).param("UCP-Agent");
    let error = match fault {
        ProfileFault::Address => error(
            ErrorCode::InvalidProfileUrl,
            AgentFault::Address.words(),
        ),
        ProfileFault::Unreachable => error(
            ErrorCode::ProfileUnreachable,
            "The profile in UCP-Agent cannot be fetched. It must be served over https at a public address, as JSON, without a redirection. \
             Nothing was done.",
        )
        .retry_after(LATER),
        ProfileFault::Busy => error(
            ErrorCode::ProfileUnreachable,
            "Too many profiles are being fetched. Nothing was done; send the request again in a moment.",
        )
        .retry_after(LATER),
        ProfileFault::Malformed => error(
            ErrorCode::ProfileMalformed,
            "What lies at the address in UCP-Agent is no profile of UCP 2026-04-08. Nothing was done.",
        ),
    };
    Disagreement::Refused(Box::new(error))
}

fn nothing_common(mismatch: Mismatch) -> Disagreement {
    match mismatch {
        Mismatch::Version => {
            let words =
                "The platform's profile is of another version; this service speaks 2026-04-08.";
            let error = ApiError::new(ErrorCode::VersionUnsupported, words).param("UCP-Agent");
            Disagreement::Refused(Box::new(error))
        }
        Mismatch::Capabilities => Disagreement::Told(wire::error(
            "capabilities_incompatible",
            "The platform's profile does not list dev.ucp.shopping.checkout in version 2026-04-08, and nothing else is offered here.",
            None,
        )),
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue, StatusCode};
    use serde_json::json;
    use tollgate_fetch::FetchError;
    use tollgate_filter::Clock;

    use super::super::agent;
    use super::super::profiles::tests::{Has, SOUND, profiles};
    use super::*;

    const AGENT: &str = "profile=\"https://platform.example/.well-known/ucp\"";

    #[tokio::test]
    async fn a_platform_is_dealt_with_by_what_its_profile_says() {
        let found = meet(AGENT, || Ok(SOUND)).await.expect("it can buy");
        assert_eq!(found, Negotiated::granted());

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
                Disagreement::Refused(error) => {
                    assert_eq!((error.status().as_u16(), error.code.word()), (status, code));
                }
                Disagreement::Told(body) => {
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

    async fn meet(named: &'static str, has: Has) -> Result<Negotiated, Disagreement> {
        let mut headers = HeaderMap::new();
        headers.insert("ucp-agent", HeaderValue::from_static(named));
        let agent = agent::read(&headers, false).expect("it can be read");
        let (clock, _) = Clock::manual(1_000_000);
        let (profiles, _) = profiles(has, clock);
        negotiate(&profiles, &agent.expect("it names one")).await
    }
}
