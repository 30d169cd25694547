//! The identity of the service: its name in credentials, and its public URLs.

use crate::Resource;

/// Name and URLs of the service.
#[derive(Clone, Debug)]
pub struct ServiceIdentity {
    /// The short word in `x_svc`, `sk-svc-` and the like.
    pub name: String,
    /// Base URL of the API and issuer, without a trailing slash.
    pub base_url: String,
    /// Root URL for discovery, without a trailing slash.
    pub root_url: String,
}

impl ServiceIdentity {
    /// The canonical identifier of a resource (RFC 8707).
    pub fn resource_url(&self, resource: Resource) -> String {
        format!("{}{}", self.base_url, resource.path())
    }
}
