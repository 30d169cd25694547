//! Rate classes of accounts that the settings do not define.

use std::sync::Arc;

use tollgate_rate_limit::Limits as RateLimits;
use tollgate_store::Store;

use crate::config::Settings;

/// Logs rate classes of accounts that the settings do not define. Runs on a separate thread, because the search visits every account. A
/// store that is closed before the search begins is not read.
pub(super) fn warn_about_classes(store: &Arc<dyn Store>, settings: &Settings) {
    let limits: RateLimits = settings.sections.find().unwrap_or_default();
    let store = Arc::downgrade(store);
    let warn = move || {
        let classes = store.upgrade().map(|store| store.account_classes());
        match classes.transpose() {
            Ok(classes) => {
                for class in classes.into_iter().flatten() {
                    if limits.class(&class).is_none() {
                        tracing::warn!(%class, "rate class of accounts is not configured, using `free`");
                    }
                }
            }
            Err(error) => tracing::warn!(%error, "reading the rate classes of accounts failed"),
        }
    };
    let thread = std::thread::Builder::new().name(String::from("classes"));
    if let Err(error) = thread.spawn(warn) {
        tracing::warn!(%error, "starting a thread to read the rate classes of accounts failed");
    }
}
