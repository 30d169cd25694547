//! File watch: reloads the settings when their file, or a file that they name, has changed.
//!
//! The files are looked at every two seconds, and reloaded when they have not changed for that time: an editor or a renewal of certificates
//! may write several of them.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::reload::Reloader;
use crate::admin::RunningSettings;

const INTERVAL: Duration = Duration::from_secs(2);

/// What changes with a file: whether it is there, its inode, size and time of change.
type Stamp = Option<(u64, u64, i64, i64)>;

fn stamp(file: &Path) -> Stamp {
    let found = std::fs::metadata(file).ok()?;
    Some((found.ino(), found.size(), found.mtime(), found.mtime_nsec()))
}

/// Watches the files of the settings in force; does not end.
pub(super) async fn watch(reloader: Arc<Reloader>) {
    let mut loaded = stamps(&reloader);
    let mut seen = loaded.clone();
    loop {
        tokio::time::sleep(INTERVAL).await;
        let now = stamps(&reloader);
        if now != loaded && now == seen {
            let reload = reloader.clone();
            // The result is logged.
            let _ = tokio::task::spawn_blocking(move || reload.reload().is_ok()).await;
            // A failure is not repeated before the next change. The new settings may name other files.
            loaded = stamps(&reloader);
        }
        seen = now;
    }
}

fn stamps(reloader: &Reloader) -> Vec<(PathBuf, Stamp)> {
    let files = RunningSettings::settings(reloader).source.files();
    let files = files.into_iter();
    files
        .map(|file| {
            let stamp = stamp(&file);
            (file, stamp)
        })
        .collect()
}
