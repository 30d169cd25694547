//! The access token of the process: fetched with single flight, renewed before it expires.

use std::sync::Arc;
use std::time::Duration;

use secrecy::SecretString;
use serde::Deserialize;
use tokio::sync::Mutex;
use tollgate_clock::Clock;

use crate::error::{Error, ErrorKind};

/// Share of the lifetime after which the token is renewed, in percent.
const RENEW_PERCENT: u32 = 80;

/// Backoff after a failed fetch; bounds the calls to a failing token endpoint.
const RETRY_BACKOFF: Duration = Duration::from_secs(2);

/// Answer of the token endpoint (RFC 6749 section 5.1).
#[derive(Deserialize)]
pub(crate) struct TokenResponse {
    pub(crate) access_token: String,
    pub(crate) token_type: String,
    /// Seconds.
    pub(crate) expires_in: u64,
}

/// An access token.
#[derive(Clone, Debug)]
pub(crate) struct Token {
    pub(crate) text: Arc<SecretString>,
    /// Identifies the token among those of the process.
    number: u64,
}

/// The token cache of a process.
#[derive(Debug, Default)]
pub(crate) struct Tokens {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    token: Option<(Token, Duration)>,
    count: u64,
    /// Earliest next fetch after a failure.
    retry_at: Duration,
}

impl Tokens {
    /// The token, fetched by `fetch` when missing or about to expire. Concurrent callers wait for one fetch.
    pub(crate) async fn get<F: Future<Output = Result<TokenResponse, Error>>>(
        &self,
        clock: &Clock,
        fetch: impl FnOnce() -> F,
    ) -> Result<Token, Error> {
        let mut state = self.state.lock().await;
        let now = clock.elapsed();
        if let Some((token, renew_at)) = &state.token
            && now < *renew_at
        {
            return Ok(token.clone());
        }
        if now < state.retry_at {
            let detail = "backing off after a failed attempt";
            return Err(Error::new(ErrorKind::Unavailable, WHAT, detail));
        }
        let granted = match fetch().await {
            Ok(granted) if granted.token_type.eq_ignore_ascii_case("bearer") => granted,
            Ok(_) => {
                state.retry_at = clock.elapsed() + RETRY_BACKOFF;
                let detail = "the token is not a bearer token";
                return Err(Error::new(ErrorKind::Unavailable, WHAT, detail));
            }
            Err(error) => {
                state.retry_at = clock.elapsed() + RETRY_BACKOFF;
                return Err(error);
            }
        };
        let life = Duration::from_secs(granted.expires_in);
        state.count += 1;
        let token = Token {
            text: Arc::new(SecretString::from(granted.access_token)),
            number: state.count,
        };
        state.token = Some((token.clone(), now + life * RENEW_PERCENT / 100));
        Ok(token)
    }

    /// Drops a rejected token, unless it was renewed meanwhile.
    pub(crate) async fn drop_refused(&self, refused: &Token) {
        let mut state = self.state.lock().await;
        if state
            .token
            .as_ref()
            .is_some_and(|(token, _)| token.number == refused.number)
        {
            state.token = None;
        }
    }
}

pub(crate) const WHAT: &str = "fetch access token";

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use secrecy::ExposeSecret;

    use super::*;
    use tollgate_clock::Timestamp;

    fn granted(number: u32) -> TokenResponse {
        TokenResponse {
            access_token: format!("token-{number}"),
            token_type: String::from("Bearer"),
            expires_in: 1_000,
        }
    }

    #[tokio::test]
    async fn a_token_is_fetched_once_and_renewed_at_four_fifths_of_its_life() {
        let (clock, hand) = Clock::manual(Timestamp::from_secs(1));
        let tokens = Tokens::default();
        let fetched = AtomicU32::new(0);
        let get = || {
            tokens.get(&clock, || async {
                // Lets the other callers join.
                tokio::task::yield_now().await;
                Ok(granted(fetched.fetch_add(1, Relaxed)))
            })
        };
        let (one, two, three) = tokio::join!(get(), get(), get());
        for token in [one, two, three] {
            assert_eq!(token.expect("a token").text.expose_secret(), "token-0");
        }
        hand.advance(Duration::from_secs(799));
        assert_eq!(
            get().await.expect("a token").text.expose_secret(),
            "token-0"
        );
        hand.advance(Duration::from_secs(1));
        let renewed = get().await.expect("a token");
        assert_eq!(renewed.text.expose_secret(), "token-1");
        tokens.drop_refused(&renewed).await;
        let third = get().await.expect("a token");
        assert_eq!(third.text.expose_secret(), "token-2");
        tokens.drop_refused(&renewed).await;
        assert_eq!(
            get().await.expect("a token").text.expose_secret(),
            "token-2",
            "an older refusal"
        );
    }

    #[tokio::test]
    async fn a_failed_token_fetch_backs_off() {
        let (clock, hand) = Clock::manual(Timestamp::from_secs(1));
        let tokens = Tokens::default();
        let asked = AtomicU32::new(0);
        let get = || {
            tokens.get(&clock, || async {
                asked.fetch_add(1, Relaxed);
                Err(Error::new(
                    ErrorKind::Misconfigured,
                    WHAT,
                    "401 invalid_client",
                ))
            })
        };
        for _ in 0..3 {
            assert!(get().await.is_err());
        }
        assert_eq!(asked.load(Relaxed), 1);
        hand.advance(RETRY_BACKOFF);
        assert!(get().await.is_err());
        assert_eq!(asked.load(Relaxed), 2);
    }
}
