//! Profiles of platforms, fetched when they are needed and kept while they are fresh.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tollgate_fetch::{
    Cached, DocumentCache, DocumentUrl, FetchError, Fetched, Fetcher, SetupError,
};
use tollgate_filter::Clock;
use url::Url;

use super::negotiation::{self, Common, Malformed, Mismatch};

/// The most bytes of a profile: one with all of the protocol's capabilities and a few keys has about ten thousand.
const BYTES_MAX: usize = 64 * 1024;

/// A document that is no profile is not fetched again for so long.
const MALFORMED_TTL: Duration = Duration::from_secs(60);

type Fetching<'a> = Pin<Box<dyn Future<Output = Result<Fetched, FetchError>> + Send + 'a>>;

/// Where documents come from.
trait Source: Send + Sync {
    fn fetch<'a>(&'a self, url: &'a DocumentUrl) -> Fetching<'a>;
}

impl Source for Fetcher {
    fn fetch<'a>(&'a self, url: &'a DocumentUrl) -> Fetching<'a> {
        Box::pin(Fetcher::fetch(self, url))
    }
}

/// What comes of a profile.
type Negotiation = Result<Common, Mismatch>;

/// Profiles of platforms. What comes of each is kept, and not the profile: that is as long as a stranger likes.
pub(crate) struct Profiles {
    source: Box<dyn Source>,
    cache: DocumentCache<Result<Negotiation, Malformed>>,
    clock: Clock,
}

/// Why a profile was not had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProfileError {
    /// Its address is none that is fetched from.
    Address,
    /// It could not be fetched, now or a moment ago.
    Unreachable,
    /// Too many are being fetched, or too many of its host were.
    Busy,
    /// What lies there is no profile.
    Malformed,
}

impl Profiles {
    /// Profiles from the public internet.
    pub(crate) fn new(clock: Clock) -> Result<Profiles, SetupError> {
        Ok(Profiles::over(Box::new(Fetcher::new(BYTES_MAX)?), clock))
    }

    fn over(source: Box<dyn Source>, clock: Clock) -> Profiles {
        Profiles {
            source,
            cache: DocumentCache::default(),
            clock,
        }
    }

    /// What comes of the profile at an address.
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
            // Says nothing of the profile: others were being fetched.
            Err(FetchError::TooMany) => Err(ProfileError::Busy),
            Err(error) => {
                tracing::info!(host = url.host(), cause = %error, "the profile of a platform was not had");
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

    /// A profile of a platform that can buy.
    pub(crate) const SOUND: &str = r#"{"ucp":{"version":"2026-04-08","capabilities":{"dev.ucp.shopping.checkout":[{"version":"2026-04-08"}]}}}"#;

    /// What lies at an address.
    pub(crate) type Has = fn() -> Result<&'static str, FetchError>;

    /// Has the same for every address, and counts how often it was asked.
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

    /// Profiles from a source that has this at every address, and how often it was asked.
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
        //  what lies there, what comes of it, for how many seconds
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
            let (clock, time) = Clock::manual(1_000_000);
            let (profiles, asked) = profiles(has, clock);
            for (wait, times) in [(0, 1), (secs - 1, 1), (1, 2)] {
                time.advance(Duration::from_secs(wait));
                assert_eq!(profiles.at(&address).await.err(), expected);
                assert_eq!(asked.load(Relaxed), times, "{expected:?} after {wait}");
            }
        }
    }

    #[tokio::test]
    async fn what_is_not_asked_says_nothing_of_the_profile() {
        let (clock, _) = Clock::manual(1_000_000);
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
