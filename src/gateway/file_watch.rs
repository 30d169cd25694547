//! File watch: reads certificates again when their files have changed, and reloads the settings when their file, or another that they name,
//! has, where the settings say so.
//!
//! The files are looked at every two seconds, and read when they have not changed for that time: an editor or a renewal of certificates
//! may write several of them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::reload::Reloader;
use crate::admin::control::Change;
use crate::admin::{Actor, Changes, RunningSettings};
use crate::config::Stamp;

const INTERVAL: Duration = Duration::from_secs(2);

/// Watches the certificates of the settings in force; does not end. Only they are exchanged: a settings file that was edited meanwhile waits
/// for its reload.
///
/// A chain whose key has not been replaced yet is read again each time until both match. A failure is logged once, until it is another one.
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

/// Watches the files of the settings in force; does not end. What changed since they were read is noticed, also before the watch began.
pub(super) async fn watch_settings(reloader: Arc<Reloader>, changes: Arc<dyn Changes>) {
    let mut seen = Vec::new();
    let mut refused = Vec::new();
    loop {
        tokio::time::sleep(INTERVAL).await;
        let settings = RunningSettings::settings(&*reloader);
        let read = settings.source.stamps();
        let now: Vec<(PathBuf, Stamp)> = read
            .iter()
            .map(|(file, _)| (file.clone(), Stamp::of(file)))
            .collect();
        if now != read && now == seen && now != refused {
            let reload = changes.apply(Change::SettingsReload {}, Actor::FileWatch.into());
            // The result is logged.
            drop(reload.await);
            // A failure is not repeated before the next change.
            refused.clone_from(&now);
        }
        seen = now;
    }
}
