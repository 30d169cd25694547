//! File watch: reloads the settings when their file, or a file that they name, has changed.
//!
//! The files are looked at every two seconds, and reloaded when they have not changed for that time: an editor or a renewal of certificates
//! may write several of them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::reload::Reloader;
use crate::admin::RunningSettings;
use crate::config::Stamp;

const INTERVAL: Duration = Duration::from_secs(2);

/// Watches the files of the settings in force; does not end. What changed since they were read is noticed, also before the watch began.
pub(super) async fn watch(reloader: Arc<Reloader>) {
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
            let reload = reloader.clone();
            // The result is logged.
            let _ = tokio::task::spawn_blocking(move || reload.reload().is_ok()).await;
            // A failure is not repeated before the next change.
            refused.clone_from(&now);
        }
        seen = now;
    }
}
