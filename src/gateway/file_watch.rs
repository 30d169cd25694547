//! File watch: reads certificates again when their files have changed. Where the settings say so, the watch also reloads the settings when
//! the settings file or a file named by the settings has changed.
//!
//! The watch looks at the files every two seconds. The watch reads a file once the file has not changed for two seconds, because an editor
//! or a renewal of certificates may write several files.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tollgate_clock::{Backoff, Jitter};

use super::conditions::Conditions;
use super::reload::Reloader;
use crate::admin::operations::settings::Reload;
use crate::admin::{Actor, ChangeErrorKind, Changes, RunningSettings};
use crate::config::Stamp;

const INTERVAL: Duration = Duration::from_secs(2);

/// Watches the certificates of the settings in force; does not end. The watch exchanges certificates only: a settings file edited meanwhile
/// waits for its reload.
///
/// A chain whose key has not been replaced yet is read again until chain and key match. A failure is logged when the failure differs from
/// the last one.
pub(super) async fn watch_certificates(reloader: Arc<Reloader>) {
    let mut seen = Vec::new();
    let mut logged = Vec::new();
    loop {
        tokio::time::sleep(INTERVAL).await;
        let settings = RunningSettings::settings(&*reloader);
        let admin = settings.admin.tls.iter().map(|tls| &tls.certificate);
        let certificates: Vec<_> = settings.certificates().chain(admin).collect();
        let files = certificates.iter().flat_map(|one| one.files());
        let now: Vec<Stamp> = files.map(Stamp::of).collect();
        if now == seen && certificates.iter().any(|one| one.has_changed()) {
            let reload = reloader.clone();
            let failed = tokio::task::spawn_blocking(move || reload.reload_certificates()).await;
            let failed = failed.unwrap_or_default();
            for cause in failed.iter().filter(|cause| !logged.contains(*cause)) {
                tracing::error!(%cause, "reloading certificate failed, the earlier one stays in use");
            }
            logged = failed;
        }
        seen = now;
    }
}

/// Watches the files of the settings in force; does not end. The watch also notices a change between the last read of a file and the start
/// of the watch.
///
/// A reload refused because of the content of the files is repeated only after the files change. A reload refused by the database or an
/// upgrade is retried with exponential backoff.
pub(super) async fn watch_settings(
    reloader: Arc<Reloader>,
    changes: Arc<dyn Changes>,
    conditions: Arc<Conditions>,
) {
    let mut seen = Vec::new();
    let mut refused = Vec::new();
    let mut pause = Pause::default();
    loop {
        tokio::time::sleep(INTERVAL).await;
        let settings = RunningSettings::settings(&*reloader);
        let read = settings.source.stamps();
        let now: Vec<(PathBuf, Stamp)> = read
            .iter()
            .map(|(file, _)| (file.clone(), Stamp::of(file)))
            .collect();
        if now != seen {
            pause = Pause::default();
        }
        if now == read {
            conditions.settings_in_force(true);
        } else if now == seen && now != refused && pause.is_over() {
            // Before the attempt, whose record in the audit log waits for the database too.
            conditions.settings_in_force(false);
            let reload = changes.perform(Reload {}, Actor::FileWatch.into());
            // The result is logged.
            match reload.await {
                Ok(_) => conditions.settings_in_force(true),
                Err(error) if error.kind == ChangeErrorKind::Unavailable => pause.extend(),
                Err(_) => refused.clone_from(&now),
            }
        }
        seen = now;
    }
}

/// Retries of a reload that the database or an upgrade refused.
const RETRY: Backoff = Backoff {
    base: INTERVAL,
    max: Duration::from_mins(1),
    jitter: Jitter::None,
};

/// How many periods of the watch pass before the next attempt.
#[derive(Default)]
struct Pause {
    left: u128,
    failures: u32,
}

impl Pause {
    fn extend(&mut self) {
        self.left = RETRY.exact(self.failures).as_millis() / INTERVAL.as_millis();
        self.failures = self.failures.saturating_add(1);
    }

    /// Whether the next attempt is due; called once a period.
    fn is_over(&mut self) -> bool {
        let is_over = self.left == 0;
        self.left = self.left.saturating_sub(1);
        is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_doubles_the_periods_before_the_next_attempt() {
        let mut pause = Pause::default();
        let mut periods = |failures: u32| {
            let mut periods = Vec::new();
            for _ in 0..failures {
                pause.extend();
                periods.push((1..).find(|_| pause.is_over()).expect("it ends") - 1);
            }
            periods
        };
        assert_eq!(periods(7), [1, 2, 4, 8, 16, 30, 30]);
    }
}
