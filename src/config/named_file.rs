//! Files named in settings: changes, and the distinction of certificates.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Changes with the file: existence, inode, size and time of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp(Option<(u64, u64, i64, i64)>);

impl Stamp {
    /// The file as it is now.
    pub(crate) fn of(file: &Path) -> Stamp {
        let found = std::fs::metadata(file).ok();
        Stamp(found.map(|found| (found.ino(), found.size(), found.mtime(), found.mtime_nsec())))
    }
}

/// Whether a key names the chain or the private key of a certificate of this gateway.
pub(super) fn is_of_certificate(key: &str) -> bool {
    let is_tls = key.contains("].tls[") || key.starts_with("admin.tls.");
    is_tls && (key.ends_with(".certificate") || key.ends_with(".key"))
}
