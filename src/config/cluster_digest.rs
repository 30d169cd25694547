//! Digest of the settings common to all nodes of a database, for comparison between the nodes.

use std::collections::BTreeMap;

use tollgate_module::Declarations;
use tollgate_store::RootSecret;

use super::difference::is_in;
use super::source::Source;

/// The sections and keys that may differ between nodes, since each belongs to one machine. Every other setting counts, including the
/// settings of modules.
pub(crate) const MAY_DIFFER: [&str; 15] = [
    "admin",
    "listener",
    "store",
    "telemetry",
    "server.accept_queue",
    "server.connections_max",
    "server.connections_per_address_max",
    "server.drain_delay_secs",
    "server.environment_file",
    "server.grace_secs",
    "server.memory_bytes_max",
    "server.watch_settings",
    "server.workers",
    "cache.max_bytes",
    "cache.max_entry_bytes",
];

/// The form of a digest. Raise the number when equal settings get another digest: nodes of two releases do not compare different forms.
const FORM: u32 = 1;

/// Derives the key of a digest from the store's root secret.
const CONTEXT: &str = "tollgate 2026-11 digest of the settings that nodes have in common";

impl Source {
    /// The digest of the common settings, after its form. The digest covers secrets, so its key is derived from the root secret of the
    /// store.
    pub(crate) fn cluster_digest(&self, root: &RootSecret, modules: &Declarations) -> String {
        let mut hasher = blake3::Hasher::new_keyed(&blake3::derive_key(CONTEXT, &root.0));
        for part in self.common(modules).iter().flat_map(<[&String; 2]>::from) {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
        format!("{FORM}-{}", &hasher.finalize().to_hex()[..16])
    }

    /// The common settings, as written. A setting that names a file or a variable counts by the content.
    fn common(&self, modules: &Declarations) -> BTreeMap<String, String> {
        let values = self.values(modules).into_iter();
        let common = values.filter(|(key, _)| !may_differ(key));
        let common = common.map(|(key, (value, _))| {
            let named = key.strip_suffix("_file");
            match named.or_else(|| key.strip_suffix("_env")) {
                Some(name) => {
                    let content = self.contents.get(&key).map(ToString::to_string);
                    (name.to_owned(), content.unwrap_or_default())
                }
                None => (key, value),
            }
        });
        common.collect()
    }
}

/// Trusted roots belong to the machine in every section.
fn may_differ(key: &str) -> bool {
    key.rsplit('.').next() == Some("ca_file") || MAY_DIFFER.iter().any(|one| is_in(key, one))
}
