//! Forms of browsers whose session has ended, kept in memory until the sign-in.
//!
//! A form then becomes the draft of the new session: the page shows the filled form and sends no request. Without a session no row is
//! written to the store, so anonymous requests cannot fill the store; a restart loses the forms.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tollgate_clock::Timestamp;
use tollgate_identity::SessionValue;
use tollgate_store::Draft;

/// Time in which the person has to sign in.
const LIFE: Duration = Duration::from_secs(30 * 60);

/// Maximum number of forms; above the maximum the oldest is dropped. Each has at most 16 KiB.
const DRAFTS_MAX: usize = 256;

/// The last form of each browser, by the digest of its cookie value.
#[derive(Debug, Default)]
pub(crate) struct Drafts(Mutex<HashMap<[u8; 32], (Timestamp, Draft)>>);

impl Drafts {
    /// Keeps a form until the browser signs in.
    pub(crate) fn keep(&self, browser: &SessionValue, draft: Draft, now: Timestamp) {
        let mut drafts = self.0.lock();
        drafts.retain(|_, (kept_at, _)| now.duration_since(*kept_at) < LIFE);
        drafts.insert(browser.digest(), (now, draft));
        if drafts.len() > DRAFTS_MAX {
            let oldest = drafts.iter().min_by_key(|(_, (kept_at, _))| *kept_at);
            if let Some(browser) = oldest.map(|(browser, _)| *browser) {
                drafts.remove(&browser);
            }
        }
    }

    /// The form of a browser that signs in.
    pub(crate) fn take(&self, browser: &SessionValue, now: Timestamp) -> Option<Draft> {
        let mut drafts = self.0.lock();
        let (kept_at, draft) = drafts.remove(&browser.digest())?;
        (now.duration_since(kept_at) < LIFE).then_some(draft)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_waits_for_half_an_hour_and_only_so_many_do() {
        let drafts = Drafts::default();
        let browser = |number: usize| {
            SessionValue::draw(|out| out[..8].copy_from_slice(&number.to_be_bytes()))
        };
        let draft = || Draft {
            path: "/keys/create".into(),
            form: "name=ci".into(),
        };
        let start = Timestamp::UNIX_EPOCH;
        drafts.keep(&browser(0), draft(), start);
        assert_eq!(drafts.take(&browser(1), start), None);
        assert_eq!(drafts.take(&browser(0), start), Some(draft()));
        assert_eq!(drafts.take(&browser(0), start), None, "once");
        drafts.keep(&browser(0), draft(), start);
        assert_eq!(drafts.take(&browser(0), start + LIFE), None);
        for number in 0..=DRAFTS_MAX {
            let at = start + Duration::from_secs(number as u64);
            drafts.keep(&browser(number), draft(), at);
        }
        assert_eq!(
            drafts.take(&browser(0), start),
            None,
            "the oldest is dropped"
        );
        assert_eq!(drafts.take(&browser(1), start), Some(draft()));
    }
}
