//! The fields of a request by which an operator checks a server: like a client's fields, in the name of no account.

use http::Method;
use http::header::HeaderMap;
use tollgate_clock::Clock;
use tollgate_filter::Scopes;
use tollgate_money::{AccountId, OperationId};

use crate::McpResource;
use crate::fields::Names;
use crate::signature::{Signed, sign};

/// The gateway's fields of a request to the server of a resource, signed where the resource's settings have a secret. The owner is an id
/// that no account has.
pub fn probe_fields(
    service: &str,
    resource: &McpResource,
    method: &Method,
    clock: &Clock,
) -> HeaderMap {
    let (mut fields, names, created) = (HeaderMap::new(), Names::new(service), clock.now());
    let owner = AccountId::from_bytes([0; 16]);
    let made_at = u64::try_from(created.as_millis()).unwrap_or_default();
    let id = OperationId::from_parts(made_at, [0; 10]);
    names.insert_own(&mut fields, owner, Scopes::NONE, id);
    if let (Some(secret), Some(server)) = (&resource.secret, &resource.upstream) {
        let signed = Signed {
            method,
            target: &server.path,
            created,
            key_id: &server.name,
        };
        sign(secret, service, &names, &signed, &mut fields);
    }
    fields
}
