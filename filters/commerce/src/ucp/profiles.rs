//! Cache of platform profiles: fetched on demand, kept while fresh.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tollgate_clock::Clock;
use tollgate_fetch::{
    Cached, DocumentCache, DocumentUrl, FetchError, Fetched, Fetcher, SetupError,
};
use url::Url;

use super::negotiation::{self, Common, Malformed, Mismatch};

/// Maximum size of a profile, in bytes: a profile with all of the protocol's capabilities and a few keys has about ten thousand.
const BYTES_MAX: usize = 64 * 1024;

/// Cache lifetime of a malformed document.
const MALFORMED_TTL: Duration = Duration::from_secs(60);

type Fetching<'a> = Pin<Box<dyn Future<Output = Result<Fetched, FetchError>> + Send + 'a>>;

/// Source of documents.
trait Source: Send + Sync {
    fn fetch<'a>(&'a self, url: &'a DocumentUrl) -> Fetching<'a>;
}

impl Source for Fetcher {
    fn fetch<'a>(&'a self, url: &'a DocumentUrl) -> Fetching<'a> {
        // Only accounts cause these fetches, and the requests of an account are limited.
        Box::pin(Fetcher::fetch(self, url, None))
    }
}

/// Result of negotiating with a profile.
type Negotiation = Result<Common, Mismatch>;

/// Cache of negotiation results per profile. The result is kept, not the profile, whose size is controlled by the platform.
pub(crate) struct Profiles {
    source: Box<dyn Source>,
    cache: DocumentCache<Result<Negotiation, Malformed>>,
    clock: Clock,
}

/// Why a profile is unavailable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProfileError {
    /// The URL is not allowed for fetching.
    Address,
    /// Fetching failed, now or recently.
    Unreachable,
    /// Too many fetches in progress, or too many for its host.
    Busy,
    /// The document is not a profile.
    Malformed,
}

impl Profiles {
    /// Fetches from the public internet.
    pub(crate) fn new(clock: Clock) -> Result<Profiles, SetupError> {
        Ok(Profiles::over(
            Box::new(Fetcher::new(BYTES_MAX, clock.clone())?),
            clock,
        ))
    }

    fn over(source: Box<dyn Source>, clock: Clock) -> Profiles {
        Profiles {
            source,
            cache: DocumentCache::default(),
            clock,
        }
    }

    /// The negotiation result for the profile at a URL.
    pub(crate) async fn at(&self, url: &Url) -> Result<Negotiation, ProfileError> {
        let url: DocumentUrl = url.as_str().parse().map_err(|_| ProfileError::Address)?;
        let now = self.clock.elapsed();
        let found = match self.cache.get(url.as_str(), now) {
            Some(Cached::Found(found)) => found,
            Some(Cached::Failure) => return Err(ProfileError::Unreachable),
            None if !self.cache.may_fetch(url.host(), now) => return Err(ProfileError::Busy),
            None => self.fetch(&url).await?,
        };
        (*found)
            .clone()
            .map_err(|Malformed| ProfileError::Malformed)
    }

    async fn fetch(
        &self,
        url: &DocumentUrl,
    ) -> Result<Arc<Result<Negotiation, Malformed>>, ProfileError> {
        let fetched = self.source.fetch(url).await;
        let now = self.clock.elapsed();
        match fetched {
            Ok(Fetched { body, fresh }) => {
                let parsed = negotiation::parse(&body);
                let parsed = parsed.map(|profile| negotiation::for_checkout(&profile));
                let parsed = Arc::new(parsed);
                let fresh = if parsed.is_ok() { fresh } else { MALFORMED_TTL };
                self.cache.insert(url.as_str(), &parsed, now + fresh, now);
                Ok(parsed)
            }
            // Not a property of the profile: too many fetches in progress.
            Err(FetchError::TooMany) => Err(ProfileError::Busy),
            Err(error) => {
                tracing::info!(host = url.host(), cause = %error, "fetching UCP platform profile failed");
                self.cache.insert_failure(url.as_str(), now);
                Err(ProfileError::Unreachable)
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use http::StatusCode;

    use super::*;
    use tollgate_clock::Timestamp;

    /// A profile of a platform that can buy.
    pub(crate) const SOUND: &str = r#"{"ucp":{"version":"2026-04-08","capabilities":{"dev.ucp.shopping.checkout":[{"version":"2026-04-08"}]}}}"#;

    /// The document at a URL.
    pub(crate) type Has = fn() -> Result<&'static str, FetchError>;

    /// Returns the same document for every URL and counts fetches.
    struct Fake {
        asked: Arc<AtomicUsize>,
        has: Has,
    }

    impl Source for Fake {
        fn fetch<'a>(&'a self, _: &'a DocumentUrl) -> Fetching<'a> {
            self.asked.fetch_add(1, Relaxed);
            let fetched = (self.has)().map(|body| Fetched {
                body: body.as_bytes().to_vec(),
                fresh: Duration::from_secs(600),
            });
            Box::pin(std::future::ready(fetched))
        }
    }

    /// Profiles from a fake source, and its number of fetches.
    pub(crate) fn profiles(has: Has, clock: Clock) -> (Profiles, Arc<AtomicUsize>) {
        let asked = Arc::new(AtomicUsize::new(0));
        let fake = Fake {
            asked: asked.clone(),
            has,
        };
        (Profiles::over(Box::new(fake), clock), asked)
    }

    fn url(text: &str) -> Url {
        text.parse().expect("an address")
    }

    #[tokio::test]
    async fn a_profile_is_fetched_once_while_it_is_fresh_and_a_failure_kept_for_a_minute() {
        // document, expected, kept for seconds
        let cases: [(Has, Option<ProfileError>, u64); 3] = [
            (|| Ok(SOUND), None, 600),
            (|| Ok("{}"), Some(ProfileError::Malformed), 60),
            (
                || Err(FetchError::Status(StatusCode::NOT_FOUND)),
                Some(ProfileError::Unreachable),
                60,
            ),
        ];
        let address = url("https://platform.example/.well-known/ucp");
        for (has, expected, secs) in cases {
            let (clock, time) = Clock::manual(Timestamp::from_secs(1));
            let (profiles, asked) = profiles(has, clock);
            for (wait, times) in [(0, 1), (secs - 1, 1), (1, 2)] {
                time.advance(Duration::from_secs(wait));
                assert_eq!(profiles.at(&address).await.err(), expected);
                assert_eq!(asked.load(Relaxed), times, "{expected:?} after {wait}");
            }
        }
    }

    #[tokio::test]
    async fn a_fetch_that_was_not_made_is_not_cached_as_a_failure() {
        let (clock, _) = Clock::manual(Timestamp::from_secs(1));
        let (busy, asked) = profiles(|| Err(FetchError::TooMany), clock.clone());
        let address = url("https://platform.example/p");
        for times in 1..=2 {
            assert_eq!(busy.at(&address).await, Err(ProfileError::Busy));
            assert_eq!(asked.load(Relaxed), times, "it is no failure to be kept");
        }
        let (often, asked) = profiles(|| Ok(SOUND), clock.clone());
        for number in 0..12 {
            let found = often
                .at(&url(&format!("https://one.example/{number}")))
                .await;
            assert_eq!(found.is_ok(), number < 10, "{number}");
        }
        assert_eq!(asked.load(Relaxed), 10);
        let (never, asked) = profiles(|| Ok(SOUND), clock);
        for bad in [
            "https://127.0.0.1/p",
            "http://localhost/p",
            "https://a.example/",
        ] {
            assert_eq!(
                never.at(&url(bad)).await,
                Err(ProfileError::Address),
                "{bad}"
            );
        }
        assert_eq!(asked.load(Relaxed), 0);
    }
}
